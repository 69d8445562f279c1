"""Each of these options changes what a run does, in the way its description says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from hone.tracking.console import console
from tests.shows import shows
from tests.trainers.runs import ACTOR, MODEL, ROLLOUT, Run, Stage, difference, same_weights

AGENT = '''
from hone.agents import Trajectory, register_agent


@register_agent("two_words")
class TwoWords:
    """Answers with the first two tokens of an answer."""

    async def run(self, sample, llm):
        answer = await llm.generate(sample.prompt_ids)
        ids, n = answer.token_ids[:2], len(answer.token_ids[:2])
        logprobs, versions = answer.logprobs[:n], answer.versions[:n]
        return Trajectory(sample.prompt_ids, ids, [1] * n, logprobs, versions, "stop", num_turns=2)
'''
LIBRARY = """
from pathlib import Path

Path(__file__).with_name("imported").touch()
"""


def answers(stage: Stage, name: str, *more: str, steps: int = 1) -> list[dict[str, Any]]:
    """What the run's training answered in its first step."""
    length = f"trainer.total_training_steps={steps}"
    run = stage.run_ppo(name, f"trainer.rollout_data_dir={stage.directory}/{name}/rollout", length, *more)
    return run.lines("rollout/1.jsonl")


def validated(stage: Stage, name: str, *more: str) -> list[dict[str, Any]]:
    folder = f"trainer.validation_data_dir={stage.directory}/{name}/validation"
    run = stage.run_ppo(name, folder, "trainer.val_only=True", *more)
    return run.lines("validation/0.jsonl")


def inputs(lines: list[dict[str, Any]]) -> list[str]:
    return [line["input"] for line in lines]


def outputs(lines: list[dict[str, Any]]) -> list[str]:
    return [line["output"] for line in lines]


@shows("data.validation_shuffle")
def test_validation_shuffle_changes_the_order_and_no_answer(stage: Stage) -> None:
    plain = validated(stage, "plain", "data.val_max_samples=-1")
    shuffled = validated(stage, "shuffled", "data.val_max_samples=-1", "data.validation_shuffle=True")
    assert inputs(plain) != inputs(shuffled) and sorted(inputs(plain)) == sorted(inputs(shuffled))
    assert dict(zip(inputs(plain), outputs(plain))) == dict(zip(inputs(shuffled), outputs(shuffled)))
    chosen = validated(stage, "chosen", "data.val_max_samples=3", "data.validation_shuffle=True")
    assert len(chosen) == 3 and set(inputs(chosen)) != set(inputs(plain)[:3])


@shows("data.val_batch_size")
def test_val_batch_size_bounds_the_prompts_in_flight(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    from hone.workers.rollout import RolloutWorker

    rollout = RolloutWorker.rollout
    monkeypatch.setattr(
        RolloutWorker, "rollout", lambda self, tasks: (sizes.append(len(tasks)), rollout(self, tasks))[1]
    )
    whole = validated(stage, "whole", "data.val_max_samples=7")
    pieces = validated(stage, "pieces", "data.val_max_samples=7", "data.val_batch_size=3")
    assert sizes == [7, 3, 3, 1]
    assert whole == pieces


def test_shuffle_and_its_seed_change_the_mini_batches(stage: Stage) -> None:
    def weights(name: str, *more: str) -> dict[str, torch.Tensor]:
        return stage.run_ppo(name, "trainer.total_training_steps=1", *more).weights(1)

    plain, shuffled = weights("plain"), weights("shuffled", f"{ACTOR}.shuffle=True")
    other = weights("other", f"{ACTOR}.shuffle=True", f"{ACTOR}.data_loader_seed=7")
    assert not same_weights(plain, shuffled) and not same_weights(shuffled, other)
    assert same_weights(shuffled, weights("again", f"{ACTOR}.shuffle=True", f"{ACTOR}.data_loader_seed=0"))


def test_the_critic_has_passes_and_an_order_of_its_own(stage: Stage) -> None:
    def weights(name: str, *more: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        run = stage.run_ppo(name, "trainer.total_training_steps=1", *more, estimator="gae")
        return run.weights(1), run.weights(1, "critic")

    actor, critic = weights("plain")
    for number, change in enumerate(["critic.ppo_epochs=2", "critic.shuffle=True", "critic.ppo_mini_batch_size=4",
                                     "critic.cliprange_value=1e-4", "critic.grad_clip=1e-4",
                                     "critic.loss_agg_mode=token-sum"]):  # fmt: skip
        same_actor, other_critic = weights(f"run{number}", change)
        assert same_weights(actor, same_actor) and not same_weights(critic, other_critic), change


def test_min_p_keeps_likely_tokens_only(stage: Stage) -> None:
    greedy = answers(stage, "greedy", f"{ROLLOUT}.min_p=1.0")
    assert outputs(greedy)[::2] == outputs(greedy)[1::2]  # only the most likely token is left for both
    plain = answers(stage, "plain")
    assert outputs(plain)[::2] != outputs(plain)[1::2]


@shows(f"{ROLLOUT}.repetition_penalty")
def test_repetition_penalty_changes_the_answers(stage: Stage) -> None:
    greedy = f"{ROLLOUT}.min_p=1.0"
    plain, punished = (
        outputs(answers(stage, name, greedy, *more))
        for name, more in {"plain": [], "punished": [f"{ROLLOUT}.repetition_penalty=1e6"]}.items()
    )
    assert plain != punished


@shows(f"{ROLLOUT}.stop_token_ids")
def test_stop_token_ids_end_an_answer(stage: Stage) -> None:
    every = ",".join(map(str, range(len(AutoTokenizer.from_pretrained(stage.model)))))
    run = stage.run_ppo("run", f"{ROLLOUT}.stop_token_ids=[{every}]")
    assert run.lines()[0]["response_length/max"] == 1.0 and run.lines()[0]["response_length/clip_ratio"] == 0.0


@shows(f"{ROLLOUT}.stop")
def test_texts_end_an_answer_with_the_token_that_completes_one(stage: Stage) -> None:
    plain = outputs(answers(stage, "plain"))
    stopped = outputs(answers(stage, "stopped", f"{ROLLOUT}.stop=[e,'7']"))
    assert stopped != plain
    for before, after in zip(plain, stopped, strict=True):
        assert before.startswith(after) if "e" in before or "7" in before else before == after
        assert ("e" in after or "7" in after) == ("e" in before or "7" in before)


@shows(f"{ROLLOUT}.agent.agent_loop_path", f"{ROLLOUT}.agent.default_agent_loop")
def test_an_agent_of_the_users_makes_the_trajectories(stage: Stage) -> None:
    path = stage.directory / "agent.py"
    path.write_text(AGENT)
    run = stage.run_ppo(
        "run", f"{ROLLOUT}.agent.agent_loop_path={path}", f"{ROLLOUT}.agent.default_agent_loop=two_words"
    )
    assert run.lines()[0]["response_length/max"] == 2.0
    assert run.lines()[0]["num_turns/mean"] == 2.0


@shows("reward_model.launch_reward_fn_async")
@pytest.mark.parametrize(("when", "calls"), [("False", ["score", "logprobs"]), ("True", ["logprobs", "score"])])
def test_rewards_are_waited_for_before_or_after_the_log_probs(
    stage: Stage, when: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hone.trainers.sampling import Sampled
    from hone.workers.actor import ActorWorker

    seen: list[str] = []
    rewards, logprobs = Sampled.rewards, ActorWorker.compute_logprobs
    monkeypatch.setattr(Sampled, "rewards", lambda self: (seen.append("score"), rewards(self))[1])
    monkeypatch.setattr(
        ActorWorker, "compute_logprobs", lambda self, b: (seen.append("logprobs"), logprobs(self, b))[1]
    )
    stage.run_ppo("run", f"reward_model.launch_reward_fn_async={when}", "trainer.total_training_steps=1")
    assert seen == calls


@shows("trainer.log_val_generations")
def test_log_val_generations_shows_so_many_answers(stage: Stage) -> None:
    with console.capture() as captured:
        lines = validated(stage, "run", "trainer.log_val_generations=2")
    shown = [text for text in captured.get().splitlines() if text.startswith("validation, score")]
    assert len(shown) == 2 and repr(lines[1]["output"]) in shown[1]


def test_an_external_library_is_imported_before_the_model_is_loaded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage.directory / "hone_test_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(stage.directory)
    stage.run_ppo("run", f"{MODEL}.external_lib=hone_test_library", "trainer.total_training_steps=1")
    assert (stage.directory / "imported").exists()


OPTIMISERS = [
    "optimizer=SGD",
    "optimizer=Adam",
    "override_optimizer_config={amsgrad:true}",
    *(
        pytest.param(change, marks=pytest.mark.slow)
        for change in ("betas=[0.5,0.6]", "eps=1e-2", "weight_decay=0.5", "lr_warmup_steps=2")
    ),
]


@pytest.mark.parametrize("change", OPTIMISERS)
def test_the_optimiser_is_the_one_that_is_asked_for(stage: Stage, change: str) -> None:
    # Adam differs from AdamW by the decay alone, amsgrad from the second step on.
    more = [f"{ACTOR}.optim.weight_decay=0.1", "trainer.total_training_steps=3", "trainer.save_freq=3"]
    plain = stage.run_ppo("plain", *more)
    run = stage.run_ppo("run", *more, f"{ACTOR}.optim.{change}")
    assert not same_weights(plain.weights(3), run.weights(3))


def test_importance_weights_scale_the_gradient_and_masked_tokens_leave_it(stage: Stage) -> None:
    optim = [f"{ACTOR}.optim.{change}" for change in ("optimizer=SGD", "lr=0.1", "weight_decay=0")]
    one = [*optim, "trainer.total_training_steps=1", f"{ACTOR}.ppo_mini_batch_size=4", f"{ACTOR}.grad_clip=1e9"]
    begun = stage.run_ppo("begun", *one, f"{ACTOR}.optim.lr=0").weights(1)
    whole = stage.run_ppo("whole", *one).weights(1)
    # Sampler and trainer agree, so every ratio is 1: cut at 0.5 it halves the step, outside [0.4, 0.5] it is dropped.
    cut = [
        "algorithm.rollout_is=True",
        "algorithm.rollout_is_threshold=0.5",
        "algorithm.rollout_is_threshold_lower=0.4",
    ]
    halved = stage.run_ppo("halved", *one, *cut).weights(1)
    assert difference(begun, halved) == pytest.approx(difference(begun, whole) / 2, rel=1e-3)
    masked = stage.run_ppo("masked", *one, *cut, "algorithm.rollout_is_mode=mask", f"{ACTOR}.optim.weight_decay=0.5")
    assert same_weights(begun, masked.weights(1)) and masked.lines()[0]["actor/grad_norm"] == 0.0


@shows("critic.model.tokenizer_path", "critic.checkpoint.save_contents")
def test_a_tokenizer_of_its_own_stands_beside_the_critic(stage: Stage) -> None:
    tokenizer = AutoTokenizer.from_pretrained(stage.model)
    tokenizer.chat_template = "{{ 'another' }}"
    tokenizer.save_pretrained(stage.directory / "tokenizer")
    more = ["critic.checkpoint.save_contents=[model,hf_model]", "critic.checkpoint.load_contents=[model]",
            f"critic.model.tokenizer_path={stage.directory}/tokenizer"]  # fmt: skip
    run = stage.run_ppo("run", *more, estimator="gae")
    saved = AutoTokenizer.from_pretrained(run.directory / "global_step_2" / "critic" / "huggingface")
    assert saved.chat_template == "{{ 'another' }}"


def loaded_again(run: Run) -> Path:
    return run.directory / "global_step_2" / "actor" / "huggingface"


@shows(f"{ACTOR}.checkpoint.save_contents")
def test_a_saved_model_is_one_to_start_from(stage: Stage) -> None:
    contents = f"{ACTOR}.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
    run = stage.run_ppo("run", contents)
    nothing = ("trainer.total_training_steps=1", f"{ACTOR}.optim.lr=0")
    again = stage.run_ppo("again", f"{MODEL}.path={loaded_again(run)}", *nothing)
    assert difference(run.weights(), again.weights(1)) == 0.0
