"""`hone sft`: supervised fine-tuning."""

from __future__ import annotations

from pathlib import Path

from hone.cli.begin import begin


def run(argv: list[str]) -> None:
    loaded = begin("sft", argv)
    from hone.cli.processes import processes
    from hone.tracking.run_lock import sole_run
    from hone.trainers.sft import SFTTrainer

    directory = Path(loaded.config.trainer.default_local_dir).expanduser()
    with sole_run(directory), processes(loaded.config) as executor:
        SFTTrainer(loaded, executor).fit()
