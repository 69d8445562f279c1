"""`hone ppo`: reinforcement learning, with every algorithm chosen by the configuration."""

from __future__ import annotations

from hone.cli.begin import begin


def run(argv: list[str]) -> None:
    loaded = begin("ppo", argv)
    from hone.cli.processes import processes
    from hone.trainers.ppo import PPOTrainer

    with processes(loaded.config) as executor:
        PPOTrainer(loaded, executor).fit()
