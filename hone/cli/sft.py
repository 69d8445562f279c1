"""`hone sft`: supervised fine-tuning."""

from __future__ import annotations

from hone.cli.begin import begin


def run(argv: list[str]) -> None:
    loaded = begin("sft", argv)
    from hone.cli.processes import processes
    from hone.trainers.sft import SFTTrainer

    with processes(loaded.config) as executor:
        SFTTrainer(loaded, executor).fit()
