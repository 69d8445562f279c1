"""What every command that runs something does first: check the configuration, then say what should be known."""

from __future__ import annotations

import os

from hone.cli.preflight import load_and_check
from hone.config import Loaded


def begin(command: str, argv: list[str], *, here: bool = True) -> Loaded:
    """The checked configuration. Of what is heavy only that is imported which the check of it needs.

    here: the run is to be on this machine, which must have the device
    """
    # Read once by the libraries when they are first imported.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from hone.tracking.console import console, set_up_logging

    set_up_logging()
    loaded = load_and_check(command, argv, here=here)
    for notice in loaded.notices:
        console.print(f"note: {notice}", style="yellow", markup=False)
    return loaded
