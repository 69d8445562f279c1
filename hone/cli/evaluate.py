"""`hone eval`: scores for a file of responses."""

from __future__ import annotations

from hone.cli.begin import begin


def run(argv: list[str]) -> None:
    loaded = begin("eval", argv)
    from hone.trainers.evaluate import evaluate

    evaluate(loaded)
