"""The registry of agents, as it was afterwards."""

from collections.abc import Iterator
from typing import Any

import pytest

from hone.agents.registry import AGENTS


@pytest.fixture
def agents() -> Iterator[dict[str, Any]]:
    before = dict(AGENTS)
    yield AGENTS
    AGENTS.clear()
    AGENTS.update(before)
