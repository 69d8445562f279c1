"""Marks a test as the one that shows the effect of configuration keys: `@shows("algorithm.gamma")`."""

from __future__ import annotations

import pytest


def shows(*keys: str) -> pytest.MarkDecorator:
    return pytest.mark.shows(*keys)
