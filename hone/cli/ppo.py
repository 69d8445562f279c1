"""`hone ppo`: reinforcement learning, with every algorithm chosen by the configuration."""

from __future__ import annotations

from pathlib import Path

from hone.cli.begin import begin


def run(argv: list[str]) -> None:
    loaded = begin("ppo", argv)
    from hone.cli.processes import processes
    from hone.tracking.run_lock import sole_run
    from hone.trainers.ppo import PPOTrainer

    directory = Path(loaded.config.trainer.default_local_dir).expanduser()
    with sole_run(directory), processes(loaded.config) as executor:
        PPOTrainer(loaded, executor).fit()
