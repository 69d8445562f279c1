"""What a plan counts is what a run does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hone.batch import Batch
from hone.cluster import Dealing
from hone.trainers.checkpoints import Checkpoints
from hone.trainers.planning.passes import Micro, Sequences, pass_over
from hone.trainers.planning.plan import Plan
from hone.trainers.sft import SFTTrainer
from hone.trainers.validation import Validator
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.workers.rollout import RolloutWorker
from tests.trainers.runs import ACTOR, MODEL, REF, Stage

Planner = Callable[..., Plan]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> dict[str, list[Any]]:
    """What a run did, in order: optimiser steps and scoring passes with their micro-batches, generated trajectories,
    validations and checkpoints with their steps."""
    found: dict[str, list[Any]] = {name: [] for name in ("steps", "scored", "micro", "generated", "validated", "saved")}

    def watch(cls: type, method: str, note: Callable[..., None]) -> None:
        original = getattr(cls, method)

        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            note(self, *args)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(cls, method, noted)

    def passes(self: TorchEngine, batch: Batch, batching: MicroBatching, mask: str) -> Any:
        made = original(self, batch, batching, mask)
        found["micro"].append(sum(len(each.plan) for each in made))
        return made

    original = TorchEngine._passes
    monkeypatch.setattr(TorchEngine, "_passes", passes)
    watch(TorchEngine, "_watched_step", lambda self, batch, *_: found["steps"].append(len(batch)))
    watch(TorchEngine, "forward", lambda self, batch, *_: found["scored"].append(len(batch)))
    watch(RolloutWorker, "rollout", lambda self, tasks: found["generated"].append(len(tasks)))
    watch(Validator, "__call__", lambda self, step: found["validated"].append(step))
    watch(SFTTrainer, "validate", lambda self: found["validated"].append(None))
    watch(Checkpoints, "save", lambda self, step, *_: found["saved"].append(step))
    return found


RUNS = {
    "grpo": ("grpo", ["trainer.total_training_steps=5", "trainer.save_freq=2", "trainer.test_freq=3"]),
    "one step": ("grpo", [f"{ACTOR}.ppo_mini_batch_size=4", "trainer.val_before_train=True", "trainer.test_freq=1"]),
    "epochs": (
        "grpo",
        ["data.train_batch_size=24", f"{ACTOR}.ppo_mini_batch_size=8", "trainer.total_training_steps=null",
         "trainer.total_epochs=1", f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.shuffle=True", "trainer.save_freq=-1"],
    ),
    "ppo": (
        "gae",
        ["trainer.critic_warmup=1", "critic.ppo_mini_batch_size=4", "trainer.total_training_steps=3",
         f"{ACTOR}.ppo_micro_batch_size_per_gpu=3", "critic.ppo_micro_batch_size_per_gpu=2"],
    ),
    "reference": ("grpo", [f"{ACTOR}.use_kl_loss=True", f"{REF}.log_prob_micro_batch_size_per_gpu=3"]),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_an_rl_run_does_what_its_plan_counts(name: str, stage: Stage, plan: Planner, seen: dict[str, list]) -> None:
    estimator, more = RUNS[name]
    argv = stage.ppo("run", *more, estimator=estimator)
    planned = plan("ppo", argv)
    stage.run_ppo("run", *more, estimator=estimator)
    steps, updates, passes = planned.steps, planned.updates, planned.passes
    assert sum(update.total for update in updates.values()) == len(seen["steps"])
    assert seen["saved"] == list(steps.saves)
    assert [step for step in seen["validated"] if step or steps.validations.first] == list(steps.validations)
    generated = [planned.batches.sequences] * steps.left + [3] * len(steps.validations)  # 3 rows to validate with
    assert Counter(seen["generated"]) == Counter(generated)
    updating = steps.left * len(passes) if name != "ppo" else len(seen["scored"])
    assert len(seen["scored"]) == updating and set(seen["scored"]) <= {planned.batches.sequences}
    assert all(update.share.exact for update in updates.values())
    counted = Counter({one.micro_batches: 0 for one in passes.values()})
    for one in passes.values():
        counted[one.micro_batches] += steps.left
    for update in updates.values():
        counted[update.share.micro_batches] += update.total
    if name != "ppo":  # whose first step needs log-probs and trains no actor
        assert Counter(seen["micro"]) == counted


def test_a_fine_tuning_run_does_what_its_plan_counts(stage: Stage, plan: Planner, seen: dict[str, list]) -> None:
    more = ["trainer.total_training_steps=null", "trainer.total_epochs=1", "trainer.save_freq=3", "trainer.test_freq=4"]
    planned = plan("sft", stage.sft("run", *more))
    stage.run_sft("run", *more)
    assert planned.updates["model"].total == len(seen["steps"]) == planned.steps.left == 8
    assert seen["saved"] == list(planned.steps.saves) == [3, 6, 8]
    assert len(seen["validated"]) == len(planned.steps.validations) == 2
    assert seen["micro"][0] == planned.updates["model"].share.micro_batches == 2


def test_a_plan_of_a_run_that_was_stopped_counts_what_is_left(stage: Stage, plan: Planner) -> None:
    stage.run_ppo("run")
    planned = plan("ppo", stage.ppo("run", "trainer.total_training_steps=5"))
    assert (planned.steps.done, planned.steps.left, list(planned.steps.saves)) == (2, 3, [4, 5])
    assert planned.updates["actor"].total == 3 * planned.updates["actor"].optimizer_steps


def test_long_prompts_that_are_dropped_are_not_counted(stage: Stage, plan: Planner, tiny_tokenizer: Any) -> None:
    from hone.data.prompts import PromptDataset

    more = ["data.max_prompt_length=30", "data.filter_overlong_prompts=True", "trainer.total_training_steps=null"]
    kept = len(
        PromptDataset(
            f"{stage.data}/train.parquet", tokenizer=tiny_tokenizer, max_prompt_length=30, filter_overlong_prompts=True
        )
    )
    assert 4 <= kept < 64
    planned = plan("ppo", stage.ppo("run", *more))
    assert (planned.steps.rows, planned.steps.steps_per_epoch) == (kept, kept // 4)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("budget", [40, 64, 100])
def test_micro_batches_are_those_of_the_rank_with_most(ranks: int, shared: bool, budget: int) -> None:
    """Against a count by hand: each rank's sequences, as many to a micro-batch as the budget holds."""
    longest, groups = Sequences(prompt=12, response=8, n=3), [i // 3 for i in range(18)]
    batching, dealing = MicroBatching(max_tokens=budget), Dealing(balance=True, keep_groups=shared)
    found = pass_over(groups, longest, batching, ranks=ranks, shared_prompts=shared, dealing=dealing)
    mine = 18 // ranks
    assert found.sequences == mine
    if not shared:
        assert found.micro_batches == -(-mine // (budget // 20))
    assert found.tokens <= budget and len(found.fullest.lengths) >= budget // 20


def test_room_that_is_left_of_a_budget_is_filled() -> None:
    found = pass_over(
        list(range(9)), Sequences(6, 4), MicroBatching(max_tokens=25), ranks=1, shared_prompts=False, dealing=Dealing()
    )
    assert (found.fullest.lengths, found.tokens, found.exact) == ([10, 10, 5], 25, False)


def test_a_micro_batch_that_ranks_share_is_one_slice_of_its_tokens() -> None:
    micro = Micro([6, 6], [10, 10], [0, 1])
    assert micro.shared_by(4) == Micro([1], [5], [0])
    assert micro.shared_by(1) is micro


def test_the_batch_of_a_micro_batch_has_its_families_and_trained_tokens() -> None:
    batch, trained = Micro([2, 2, 3], [4, 5, 4], [7, 7, 9]).batch(vocabulary=8)
    assert batch.lengths.tolist() == [4, 5, 4]
    assert trained.tolist() == [2, 3, 6, 7, 8, 12]
    prompts = [batch["input_ids"][start : start + 2].tolist() for start in (0, 4, 9)]
    assert prompts[0] == prompts[1] != prompts[2]
    assert int(torch.max(batch["input_ids"])) < 8


def test_rows_are_counted_without_a_tokenizer(stage: Stage, plan: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hone.trainers.planning.ppo.load_tokenizer", lambda *_, **__: pytest.fail("it was loaded"))
    planned = plan("ppo", stage.ppo("run", "data.train_max_samples=30", "trainer.total_training_steps=null"))
    assert (planned.steps.rows, planned.steps.validation_rows, planned.steps.steps_per_epoch) == (30, 3, 7)


def test_places_say_who_holds_what(stage: Stage, plan: Planner, tmp_path: Path) -> None:
    packed = [f"{MODEL}.use_remove_padding=True"]
    alone = plan("ppo", stage.ppo("run", f"{ACTOR}.use_kl_loss=True", *packed, estimator="gae")).places
    assert (alone.ranks, sorted(alone.roles), alone.shard_groups) == (1, ["actor", "critic", "ref", "rollout"], {})
    many = plan(
        "ppo",
        stage.ppo("run", "trainer.nnodes=2", "trainer.n_gpus_per_node=2", f"{ACTOR}.fsdp_config.fsdp_size=2", *packed,
                  f"{ACTOR}.ulysses_sequence_parallel_size=2"),
    ).places  # fmt: skip
    assert (many.nodes, many.ranks, many.roles) == (2, 4, ["actor", "rollout"])
    assert (many.shard_groups, many.sequence_groups) == ({"actor": 2}, {"actor": 2})
