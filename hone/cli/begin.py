"""What every command that runs something does first: check the configuration, then say what should be known."""

from __future__ import annotations

import os

from hone.config import Loaded, load


def begin(command: str, argv: list[str], *, here: bool = True) -> Loaded:
    """The checked configuration. Nothing heavy is imported before it is known to be right.

    here: the run is to be on this machine, which must have the device
    """
    loaded = load(command, argv)
    # Read once by the libraries when they are first imported.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

    from hone.tracking.console import console, set_up_logging

    set_up_logging()
    from hone.cli.preflight import check_before_start

    check_before_start(loaded.config, here=here)
    for notice in loaded.notices:
        console.print(f"note: {notice}", style="yellow", markup=False)
    return loaded
