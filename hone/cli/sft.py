"""`hone sft`: supervised fine-tuning."""

from __future__ import annotations

from hone.cli.begin import begin


def run(argv: list[str]) -> None:
    loaded = begin("sft", argv)
    from hone.cluster import LocalExecutor
    from hone.trainers.sft import SFTTrainer

    SFTTrainer(loaded, LocalExecutor()).fit()
