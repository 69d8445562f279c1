"""`hone generate`: responses for a file of prompts."""

from __future__ import annotations

from hone.cli.begin import begin


def run(argv: list[str]) -> None:
    loaded = begin("generate", argv)
    from hone.cli.processes import processes
    from hone.trainers.generate import generate

    with processes(loaded.config) as executor:
        generate(loaded, executor)
