"""A run that was killed and started again by the same command ends where one that was never killed ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hone.errors import UserError
from hone.trainers.checkpoints import Checkpoints
from hone.workers.actor import ActorWorker
from hone.workers.rollout import RolloutWorker
from hone.workers.sft import SFTWorker
from tests.shows import shows
from tests.trainers.runs import ACTOR, MODEL, Run, Stage, same_weights

Patch = Callable[[pytest.MonkeyPatch], None]


class KilledError(BaseException):
    """Ends a run wherever it is, as a signal would."""


def after_the_checkpoint_of(step: int) -> Patch:
    """The checkpoint is complete, its line in metrics.jsonl is not written."""
    save = Checkpoints.save

    def patched(self: Checkpoints, number: int, *rest: object) -> Path:
        folder = save(self, number, *rest)  # type: ignore[arg-type]
        if number == step:
            raise KilledError
        return folder

    return lambda monkeypatch: monkeypatch.setattr(Checkpoints, "save", patched)


def in_the_save_of(step: int) -> Patch:
    """The model is written, nothing else of the checkpoint."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for worker in (ActorWorker, SFTWorker):

            def patched(self: object, path: Path, contents: object, save: Callable = worker.save) -> None:
                if path.parent.name == f".global_step_{step}.tmp":
                    save(self, path, ["model"])
                    raise KilledError
                save(self, path, contents)

            monkeypatch.setattr(worker, "save", patched)

    return patch


def in_the_update_of(step: int) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for worker in (ActorWorker, SFTWorker):

            def patched(self: object, batch: object, training_step: int, update: Callable = worker.update) -> dict:
                if training_step + 1 == step:
                    raise KilledError
                return update(self, batch, training_step=training_step)

            monkeypatch.setattr(worker, "update", patched)

    return patch


KILLS = {
    "after the checkpoint": after_the_checkpoint_of(2),
    "in a save": in_the_save_of(4),
    "in an update": in_the_update_of(4),
    "before any checkpoint": in_the_update_of(2),
}
# Dropout shows that random states come back, a falling learning rate that the schedule does.
RANDOM = f"+{MODEL}.override_config.attention_dropout=0.1"
FOUR = ("trainer.total_training_steps=4", "trainer.save_freq=2", "trainer.test_freq=2")
PPO = {
    "grpo": [RANDOM, f"{ACTOR}.optim.lr_scheduler_type=cosine", f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.shuffle=True"],
    "gae": [RANDOM, "algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive",
            "algorithm.kl_ctrl.horizon=20", "+critic.model.override_config.attention_dropout=0.1",
            "critic.optim.lr_scheduler_type=linear", "trainer.critic_warmup=1"],
}  # fmt: skip


def killed_and_resumed(run: Callable[[], Run], kill: Patch, monkeypatch: pytest.MonkeyPatch) -> Run:
    with monkeypatch.context() as patches:
        kill(patches)
        with pytest.raises(KilledError):
            run()
    torch.manual_seed(12345)  # a new process would not have the old one's random state
    return run()


def assert_same(whole: Run, resumed: Run, step: int, *roles: str) -> None:
    for role in roles:
        assert same_weights(whole.weights(step, role), resumed.weights(step, role)), role
    assert whole.results() == resumed.results()


FAST = [("grpo", "after the checkpoint"), ("gae", "in a save")]
SLOW = [(estimator, kill) for estimator in PPO for kill in KILLS if (estimator, kill) not in FAST]


@pytest.mark.parametrize(
    ("estimator", "kill"), [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_a_killed_ppo_run_ends_in_the_same_weights_and_metrics(
    stage: Stage, estimator: str, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [*FOUR, *PPO[estimator]]
    whole = stage.run_ppo("whole", *more, estimator=estimator)
    resumed = killed_and_resumed(lambda: stage.run_ppo("cut", *more, estimator=estimator), KILLS[kill], monkeypatch)
    assert [line["step"] for line in resumed.lines()] == [1, 2, 3, 4]
    assert_same(whole, resumed, 4, "actor", *(["critic"] if estimator == "gae" else []))


@pytest.mark.parametrize("kill", list(KILLS))
def test_a_killed_sft_run_ends_in_the_same_weights_and_metrics(
    stage: Stage, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [*FOUR, "+model.override_config.attention_dropout=0.1"]
    whole = stage.run_sft("whole", *more)
    resumed = killed_and_resumed(lambda: stage.run_sft("cut", *more), KILLS[kill], monkeypatch)
    assert_same(whole, resumed, 4, "model")


@pytest.mark.parametrize("checkpoint", [3, *(pytest.param(step, marks=pytest.mark.slow) for step in (2, 4))])
def test_the_order_of_prompts_survives_a_resume_before_at_and_after_an_epochs_end(
    stage: Stage, checkpoint: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["data.train_max_samples=13", "trainer.total_training_steps=5", f"trainer.save_freq={checkpoint}"]
    whole = stage.run_ppo("whole", *more)
    assert [line["training/epoch"] for line in whole.lines()] == [0, 0, 0, 1, 1]
    kill = after_the_checkpoint_of(checkpoint)
    assert_same(whole, killed_and_resumed(lambda: stage.run_ppo("cut", *more), kill, monkeypatch), 5, "actor")


def test_a_run_that_is_over_does_nothing_when_it_is_called_again(stage: Stage) -> None:
    first = stage.run_ppo("run")
    lines, weights = first.lines(), first.weights()
    again = stage.run_ppo("run")
    assert again.lines() == lines and same_weights(again.weights(), weights)


@shows("trainer.resume_mode", "trainer.save_freq")
def test_a_longer_run_goes_on_and_disable_begins_anew(stage: Stage) -> None:
    constant = ("trainer.save_freq=1",)
    whole = stage.run_ppo("whole", *constant, "trainer.total_training_steps=3")
    stage.run_ppo("run", *constant, "trainer.total_training_steps=2")
    longer = stage.run_ppo("run", *constant, "trainer.total_training_steps=3")
    assert_same(whole, longer, 3, "actor")
    anew = stage.run_ppo("run", *constant, "trainer.resume_mode=disable", "trainer.total_training_steps=1")
    assert [line["step"] for line in anew.lines()] == [1]


@shows("trainer.resume_from_path")
def test_another_run_goes_on_from_a_named_checkpoint(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    versions: list[int] = []
    update = RolloutWorker.update_weights
    monkeypatch.setattr(
        RolloutWorker, "update_weights", lambda self, version: (versions.append(version), update(self, version))[1]
    )
    whole = stage.run_ppo("whole", "trainer.save_freq=1", "trainer.total_training_steps=3")
    mode = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={whole.directory}/global_step_2")
    branch = stage.run_ppo("branch", *mode, "trainer.save_freq=1", "trainer.total_training_steps=3")
    assert versions == [1, 2, 3, 2, 3]
    assert same_weights(whole.weights(3), branch.weights(3))
    assert branch.results() == whole.results()[1:]  # the checkpoint brings the line of its own step


@shows("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep")
def test_old_checkpoints_are_pruned_by_role(stage: Stage) -> None:
    more = ["trainer.save_freq=1", "trainer.total_training_steps=3", "trainer.max_actor_ckpt_to_keep=1",
            "trainer.max_critic_ckpt_to_keep=2"]  # fmt: skip
    run = stage.run_ppo("run", *more, estimator="gae")
    kept = {path.parent.name + "/" + path.name for path in run.directory.glob("global_step_*/*") if path.is_dir()}
    assert kept == {"global_step_2/critic", "global_step_3/actor", "global_step_3/critic"}
    assert (run.directory / "latest_checkpointed_iteration.txt").read_text() == "3"


def test_a_checkpoint_without_a_part_that_is_to_be_loaded_is_named(stage: Stage) -> None:
    contents = f"{ACTOR}.checkpoint.save_contents=[model]"
    stage.run_ppo("run", contents)
    with pytest.raises(UserError, match=r"optimizer\.pt.*save_contents"):
        stage.run_ppo("run", "trainer.total_training_steps=3")


SCRIPT = """
import os, signal, sys
from pathlib import Path
from hone.cli.main import main
from hone.trainers.checkpoints import Checkpoints
from hone.workers.actor import ActorWorker

when, argv = sys.argv[1], sys.argv[2:]
save, actor_save = Checkpoints.save, ActorWorker.save


def killed_after(self, step, *rest):
    folder = save(self, step, *rest)
    if step == 2:
        os._exit(9)
    return folder


def killed_within(self, path, contents):
    if path.parent.name == ".global_step_4.tmp":
        actor_save(self, path, ["model"])
        os.kill(os.getpid(), signal.SIGKILL)
    actor_save(self, path, contents)


if when == "after":
    Checkpoints.save = killed_after
if when == "within":
    ActorWorker.save = killed_within
main(argv)
"""


def in_a_process(when: str, argv: list[str]) -> int:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([sys.executable, "-c", SCRIPT, when, "ppo", *argv], env=environment, check=False).returncode


@pytest.mark.slow
@pytest.mark.parametrize(("when", "code"), [("after", 9), ("within", -signal.SIGKILL)])
def test_a_process_that_was_killed_is_resumed_by_the_same_command(stage: Stage, when: str, code: int) -> None:
    whole, cut = (stage.ppo(name, *FOUR, *PPO["gae"], estimator="gae") for name in ("whole", "cut"))
    assert in_a_process("never", whole) == 0
    assert in_a_process(when, cut) == code
    assert in_a_process("never", cut) == 0
    assert_same(Run(stage.directory / "whole"), Run(stage.directory / "cut"), 4, "actor", "critic")
