"""What a run says and keeps when it ends, and when it has ended before."""

from __future__ import annotations

import pytest

from hone.cli.main import main
from hone.tracking.run_lock import sole_run
from tests.trainers.runs import Stage


def test_fine_tuning_keeps_what_it_trained_whatever_save_freq_is(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hone")
    run = stage.run_sft("run", "trainer.save_freq=-1")
    assert run.weights(2, "model")
    assert f"the run's files are in {run.directory}/" in caplog.messages[-1]
    assert caplog.messages[-1].endswith("the newest checkpoint is global_step_2/")


def test_a_run_that_was_finished_says_so_and_what_has_changed(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hone")
    run = stage.run_sft("run")
    lines = run.lines()
    stage.run_sft("run", "trainer.total_training_steps=1", "optim.lr=1e-4")
    assert any("already finished: the checkpoint has 2 steps behind it, and the run is 1" in m for m in caplog.messages)
    assert "optim.lr: 0.001 -> 0.0001" in caplog.text
    assert (run.directory / "config.before_step_3.yaml").exists() and run.lines() == lines


@pytest.mark.parametrize("command", ["ppo", "sft"])
def test_a_second_run_in_the_same_directory_is_refused(
    stage: Stage, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = stage.ppo("run") if command == "ppo" else stage.sft("run")
    with sole_run(stage.directory / "run"), pytest.raises(SystemExit) as caught:
        main([command, *argv])
    assert caught.value.code == 2
    assert "another run works there (process" in capfd.readouterr().err
