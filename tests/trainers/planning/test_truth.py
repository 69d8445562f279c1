"""What a plan says of tokens, of very long runs and of the cache is what there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hone.batch import Batch
from hone.cluster import Dealing
from hone.tracking.console import console
from hone.trainers.planning import ppo
from hone.trainers.planning.passes import Sequences, pass_over
from hone.trainers.planning.plan import Plan
from hone.trainers.planning.report import as_dict, show
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import OutputModule
from tests.trainers.runs import ACTOR, REF, ROLLOUT, Stage

Planner = Callable[..., Plan]


@pytest.mark.parametrize("packed", [False, True])
def test_the_tokens_of_a_pass_are_those_that_a_run_computes(
    packed: bool, stage: Stage, plan: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses and prompts as long as they may be, and what the model is given of them."""
    seen: list[int] = []
    forward = OutputModule.forward

    def noted(self: OutputModule, batch: Batch, *args: Any, **kwargs: Any) -> Any:
        seen.append(int(batch.lengths.max()) * len(batch) if not packed else batch.num_tokens)
        return forward(self, batch, *args, **kwargs)

    more = [f"actor_rollout_ref.model.use_remove_padding={packed}", f"{ROLLOUT}.ignore_eos=True",
            "data.train_batch_size=2", "trainer.total_training_steps=1", "data.val_files=null",
            f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"]  # fmt: skip
    argv = stage.ppo("run", *more)
    longest = _longest_prompt(stage)
    argv.append(f"data.max_prompt_length={longest}")
    planned = plan("ppo", argv)
    monkeypatch.setattr(OutputModule, "forward", noted)
    stage.run_ppo("run", *more, f"data.max_prompt_length={longest}")
    most = planned.updates["actor"].share
    assert most.tokens == 2 * (longest + 8)
    assert max(seen) <= most.tokens
    assert as_dict(planned)["updates"]["actor"]["fullest"]["trained"] == 2 * 8


def _longest_prompt(stage: Stage) -> int:
    from hone.data.prompts import PromptDataset
    from hone.models.load import load_tokenizer

    data = PromptDataset(
        f"{stage.data}/train.parquet", tokenizer=load_tokenizer(str(stage.model)), max_prompt_length=999
    )
    return max(len(data[i].prompt_ids) for i in range(len(data)))


def test_rows_of_a_rectangle_all_count_in_full() -> None:
    found = pass_over(
        [0, 1, 2], Sequences(6, 4), MicroBatching(3, padded=True), ranks=1, shared_prompts=False, dealing=Dealing()
    )
    assert (found.tokens, found.fullest.lengths) == (30, [10, 10, 10])
    assert found.dearest.lengths == [10, 10, 9]  # of which one needs a mask


def test_a_run_of_a_thousand_million_epochs_is_planned_at_once(stage: Stage, plan: Planner) -> None:
    more = ["trainer.total_epochs=1000000000", "trainer.total_training_steps=null", "trainer.test_freq=7"]
    planned = plan("ppo", stage.ppo("run", *more))
    assert planned.steps.total == 16 * 10**9
    assert len(planned.steps.saves) == 8 * 10**9
    told = as_dict(planned)["steps"]["validations"]
    assert told == {"count": 16 * 10**9 // 7 + 1, "first": 7, "last": 16 * 10**9, "every": 7}
    with console.capture() as printed:
        show(planned, console)
    assert "8,000,000,000: after step 2, 4, 6, ..., 16000000000" in printed.get()


def test_a_very_large_step_is_counted_from_a_part_of_it(
    stage: Stage, plan: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    micro = [f"{role}.log_prob_micro_batch_size_per_gpu=3" for role in (ROLLOUT, REF)]
    argv = stage.ppo("run", f"{ROLLOUT}.n=6", f"{ACTOR}.use_kl_loss=True", *micro)
    whole = plan("ppo", argv)
    monkeypatch.setattr(ppo, "MOST_DEALT", 12)
    part = plan("ppo", argv)
    for name, one in whole.passes.items():
        counted = part.passes[name]
        assert (one.sequences, one.micro_batches) == (counted.sequences, counted.micro_batches) and not counted.exact
    assert part.updates["actor"].total == whole.updates["actor"].total
    monkeypatch.undo()
    huge = plan("ppo", stage.ppo("run", f"{ROLLOUT}.n=100000000"))
    assert huge.passes["log-probs"].sequences == 4 * 10**8


def test_the_cache_holds_keys_in_the_format_of_values() -> None:
    """In mixed precision the rotation makes fp32 of keys, which products turn into bf16 again."""
    import asyncio

    from hone.rollout.hf.engine import HFEngine
    from hone.rollout.interface import Sampling
    from tests.models_of_families import tiny

    engine = HFEngine(tiny("qwen2"), eos_token_ids=[1], max_model_len=64, compute_dtype=torch.bfloat16)
    asyncio.run(engine.generate([2, 3, 4], Sampling(max_tokens=13, seed=0, ignore_eos=True)))
    layers, kv_heads, columns, width = 2, 2, 16, 8
    assert engine.cache.nbytes == 2 * layers * kv_heads * columns * width * torch.bfloat16.itemsize
