"""`hone generate`: responses for a file of prompts."""

from __future__ import annotations

from hone.cli.begin import begin


def run(argv: list[str]) -> None:
    loaded = begin("generate", argv)
    from hone.cluster import LocalExecutor
    from hone.trainers.generate import generate

    generate(loaded, LocalExecutor())
