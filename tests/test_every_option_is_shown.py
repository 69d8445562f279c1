"""No key of any command is accepted and ignored: each has a test that shows its effect (`@shows`), is refused in all
values but one, or is announced to rest.

`table()` is generated from the marks, from what the build refuses and from what is said to rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hone.config.presets import DEFAULT_PRESET, PRESETS
from hone.config.resting import RESTING
from hone.config.schema.walk import document
from hone.config.support import NOT_BUILT
from tests.conftest import SHOWN

Key = tuple[str, str]  # a command and one of its keys

# Announced one by one in tests/config/test_resting.py.
ROLLOUT = "actor_rollout_ref.rollout"
ANNOUNCED = {f"{ROLLOUT}.mode", f"{ROLLOUT}.calculate_log_probs", "data.return_raw_chat"}

# Keys that nobody has written a test for yet. The list can only become shorter: a key that is shown must leave it.
REMAINDER: set[Key] = set()


def keys_of(command: str) -> list[str]:
    docs = document(PRESETS[DEFAULT_PRESET[command]].schema)
    return [doc.key for doc in docs.values() if not doc.section]


def refused(command: str) -> Iterator[str]:
    """The keys of which every value but the one that works is refused; each row has a case in config/test_support."""
    rows = {row.key for row in NOT_BUILT[command] if len(row.works) == 1}
    yield from (key for key in keys_of(command) if key in rows or any(key.startswith(f"{row}.") for row in rows))


def resting(command: str, *, for_good: bool = False) -> Iterator[str]:
    """The keys that have nothing to do in this build, or while their section is off, which is said when one is set.
    `for_good` are those whose section cannot be switched on."""
    off = [rest for rest in RESTING[command] if not rest.off]
    if for_good:
        off = [rest for rest in off if rest.switch in set(refused(command))]
    announced = {"ppo": ANNOUNCED, "eval": {"data.prompt_key"}}.get(command, set())
    yield from (key for key in keys_of(command) if key in announced or any(rest.holds(key) for rest in off))


def table() -> dict[Key, str]:
    """What proves of each key that it is not ignored; a key without proof is missing."""
    found: dict[Key, str] = {}
    for command in DEFAULT_PRESET:
        found |= {(command, key): "announced" for key in resting(command, for_good=True)}
        found |= {(command, key): "refused" for key in refused(command)}
        found |= {(command, key): SHOWN[command, key] for key in keys_of(command) if (command, key) in SHOWN}
    return found


@pytest.fixture
def whole_suite(request: pytest.FixtureRequest) -> None:
    if request.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        pytest.skip("only a run over all tests knows all marks")


@pytest.mark.parametrize("command", DEFAULT_PRESET)
def test_every_key_is_shown_refused_or_announced(whole_suite: None, command: str) -> None:
    proved = table()
    assert [key for key in keys_of(command) if (command, key) not in proved and (command, key) not in REMAINDER] == []


def test_the_remainder_can_only_become_shorter(whole_suite: None) -> None:
    assert sorted(REMAINDER & table().keys()) == []


def test_what_is_shown_is_a_key(whole_suite: None) -> None:
    known = {(command, key) for command in DEFAULT_PRESET for key in keys_of(command)}
    assert sorted(SHOWN.keys() - known) == []
    assert sorted(REMAINDER - known) == []
