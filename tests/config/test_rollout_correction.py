"""The rollout's correction under its other names: the same run, said in a notice, or a refusal with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hone.config import ConfigError, Loaded, load
from tests.shows import shows

SECTION, ACTOR = "algorithm.rollout_correction", "actor_rollout_ref.actor"
NAMES = ("rollout_is", "rollout_is_weights", "rollout_is_level", "rollout_is_mode", "rollout_is_threshold",
         "rollout_is_threshold_lower", "rollout_is_veto_threshold")  # fmt: skip
Runnable = dict[str, list[str]]


def correction(loaded: Loaded, section: Any = None) -> tuple[Any, ...]:
    return tuple(getattr(section or loaded.config.algorithm, name) for name in NAMES)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], (False, True, "token", "truncate", None, None, None)),
        (["rollout_is=token"], (True, True, "token", "truncate", 2.0, None, None)),
        (["rollout_is=sequence", "rollout_is_threshold=5"], (True, True, "sequence", "truncate", 5.0, None, None)),
        (["rollout_rs=geometric", "rollout_rs_threshold=1.02"],
         (True, False, "geometric", "mask", 1.02, None, None)),
        (["rollout_rs=token", "rollout_rs_threshold_lower=0.1"], (True, False, "token", "mask", 2.0, 0.1, None)),
        (["rollout_is=token", "rollout_rs=token", "rollout_rs_threshold=1.5"],
         (True, True, "token", "mask", 1.5, None, None)),
        (["rollout_token_veto_threshold=1e-4"], (True, False, "token", "veto", None, None, 1e-4)),
        (["rollout_is=token", "rollout_token_veto_threshold=1e-4"],
         (True, True, "token", "truncate", 2.0, None, 1e-4)),
        (["rollout_is=none", "rollout_rs=null"], (False, True, "token", "truncate", None, None, None)),
    ],
)  # fmt: skip
def test_the_section_becomes_the_keys_that_count(
    runnable: Runnable, overrides: list[str], expected: tuple[Any, ...]
) -> None:
    loaded = load("ppo", [*runnable["ppo"], *(f"{SECTION}.{override}" for override in overrides)])
    assert correction(loaded) == correction(loaded, loaded.config.actor_rollout_ref.actor) == expected
    said = [notice for notice in loaded.notices if notice.startswith(SECTION)]
    assert len(said) == expected[0]
    assert not said or f"algorithm.rollout_is_mode={expected[3]}" in said[0] or expected[3] == "truncate"
    assert loaded.config.actor_rollout_ref.rollout.calculate_log_probs == expected[0]


def test_what_a_run_writes_down_loads_back(runnable: Runnable, tmp_path: Path) -> None:
    first = load("ppo", [*runnable["ppo"], f"{SECTION}.rollout_is=token", f"{SECTION}.rollout_rs=token"])
    (tmp_path / "config.yaml").write_text(first.to_yaml())
    again = load("ppo", ["--config-path", str(tmp_path), "--config-name", "config"])
    assert again.config == first.config
    changed = load("ppo", ["--config-path", str(tmp_path), "--config-name", "config", f"{SECTION}.rollout_is=token",
                           f"{SECTION}.rollout_rs=token"])  # fmt: skip
    assert changed.config == first.config


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        ([f"{SECTION}.rollout_is=token", f"{SECTION}.rollout_rs=geometric"], f"{SECTION}.rollout_rs", "one level"),
        ([f"{SECTION}.rollout_is=token", f"{SECTION}.rollout_rs=token", f"{SECTION}.rollout_rs_threshold=3"],
         f"{SECTION}.rollout_rs_threshold", "cuts them at 2"),
        ([f"{SECTION}.rollout_is_threshold=3"], f"{SECTION}.rollout_is_threshold", "nothing reads it"),
        ([f"{SECTION}.rollout_rs_threshold_lower=0.3"], f"{SECTION}.rollout_rs_threshold_lower", "nothing reads it"),
        ([f"{SECTION}.rollout_is=token", "algorithm.rollout_is_level=geometric"], "algorithm.rollout_is_level",
         "says 'token'"),
        ([f"{SECTION}.rollout_is=token", f"{ACTOR}.rollout_is_mode=none"], f"{ACTOR}.rollout_is_mode", "says"),
        ([f"{SECTION}.rollout_is=geometric"], f"{SECTION}.rollout_is", "is not a choice"),
        ([f"{SECTION}.rollout_is=token", f"{SECTION}.rollout_is_threshold=much"], f"{SECTION}.rollout_is_threshold",
         "wrong type"),
        ([f"{SECTION}.rollout_is=${{algorithm.rollout_is_level}}"], f"{SECTION}.rollout_is", "refers to another key"),
        (["algorithm.rollout_is=True", "algorithm.rollout_is_weights=False"], "algorithm.rollout_is_weights", "empty"),
    ],
)  # fmt: skip
def test_what_has_no_equivalent_is_refused_with_the_reason(
    runnable: Runnable, overrides: list[str], key: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load("ppo", [*runnable["ppo"], *overrides])
    found = {problem.key: problem for problem in caught.value.problems}
    assert key in found and reason in found[key].wrong and (found[key].fix or found[key].expected)


@shows(*(f"{ACTOR}.{name}" for name in NAMES))
@pytest.mark.parametrize(
    "setting",
    ["rollout_is=True", "rollout_is_threshold=3.0", "rollout_is_threshold_lower=0.5", "rollout_is_level=sequence",
     "rollout_is_mode=mask", "rollout_is_veto_threshold=1e-3", "rollout_is_weights=False"],
)  # fmt: skip
def test_a_correction_set_for_the_actor_is_that_of_the_run(runnable: Runnable, setting: str) -> None:
    on = [] if setting.startswith("rollout_is=") else ["rollout_is=True", "rollout_is_veto_threshold=1e-2"]
    on = [other for other in on if other.split("=")[0] != setting.split("=")[0]]
    actor = load("ppo", [*runnable["ppo"], *(f"{ACTOR}.{s}" for s in [*on, setting])])
    main = load("ppo", [*runnable["ppo"], *(f"algorithm.{s}" for s in [*on, setting])])
    assert correction(actor) == correction(main) == correction(main, main.config.actor_rollout_ref.actor)
    assert correction(actor) != correction(load("ppo", runnable["ppo"]))
    assert actor.config.actor_rollout_ref.rollout.calculate_log_probs
