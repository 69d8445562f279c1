"""Marks a test as the one that shows the effect of configuration keys: `@shows("algorithm.gamma")`."""

from __future__ import annotations

import pytest


def shows(*keys: str, command: str = "ppo") -> pytest.MarkDecorator:
    """The keys are those of one command; a test may be marked for several."""
    return pytest.mark.shows(*((command, key) for key in keys))
