"""`algorithm.rollout_correction`, another spelling of the rollout's correction: turned into `algorithm.rollout_is*`.

It names weights (rollout_is) and rejection (rollout_rs) apart; here one level serves both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .problems import Problem
from .tree import Tree, get, put

SECTION = "algorithm.rollout_correction"
SWITCHES = {
    "rollout_is": ("token", "sequence"),
    "rollout_rs": ("token", "sequence", "geometric"),
    "rollout_token_veto_threshold": (),
}
DEFAULTS = {
    **dict.fromkeys(SWITCHES),
    "rollout_is_threshold": 2.0,
    "rollout_rs_threshold": None,
    "rollout_rs_threshold_lower": None,
}
# What the keys that are written stand at when nobody sets them.
PLAIN = {
    "rollout_is": False,
    "rollout_is_weights": True,
    "rollout_is_level": "token",
    "rollout_is_mode": "truncate",
    "rollout_is_threshold": None,
    "rollout_is_threshold_lower": None,
    "rollout_is_veto_threshold": None,
}


def spell_out(tree: Tree, user_keys: set[str]) -> tuple[list[str], list[Problem]]:
    """Moves the section's meaning to the keys that count and empties it; values of a wrong type are left to the
    schema. Returns notices and problems."""
    given = {name: _value(tree, name) for name in DEFAULTS}
    problems = [*_idle(given), *_inexpressible(given)]
    if problems or not any(given[name] is not None for name in SWITCHES) or not _readable(given):
        return [], problems
    wanted = _equivalent(given)
    problems = list(_conflicts(wanted, tree, user_keys))
    for name, value in wanted.items():
        put(tree, f"algorithm.{name}", value)
    for name, value in DEFAULTS.items():
        put(tree, f"{SECTION}.{name}", value)
    changed = " ".join(f"algorithm.{name}={value}" for name, value in wanted.items() if value != PLAIN[name])
    return [f"{SECTION} is another spelling of {changed}"], problems


def _value(tree: Tree, name: str) -> Any:
    value = get(tree, f"{SECTION}.{name}", DEFAULTS[name])
    if isinstance(value, str) and value.lower() in ("null", "none"):
        return None
    try:
        return value if name in ("rollout_is", "rollout_rs") or value is None else float(value)
    except (TypeError, ValueError):
        return value


def _readable(given: dict[str, Any]) -> bool:
    levels = all(given[name] in (None, *choices) for name, choices in SWITCHES.items() if choices)
    return levels and not any(isinstance(given[name], str) for name in DEFAULTS if "threshold" in name)


def _equivalent(given: dict[str, Any]) -> dict[str, Any]:
    weights, rejection = given["rollout_is"], given["rollout_rs"]
    upper = given["rollout_is_threshold"] if weights else None
    if rejection:
        upper = given["rollout_rs_threshold"] or given["rollout_is_threshold"]
    return {
        "rollout_is": True,
        "rollout_is_weights": weights is not None,
        "rollout_is_level": rejection or weights or "token",
        "rollout_is_mode": "mask" if rejection else "truncate" if weights else "veto",
        "rollout_is_threshold": upper,
        "rollout_is_threshold_lower": given["rollout_rs_threshold_lower"],
        "rollout_is_veto_threshold": given["rollout_token_veto_threshold"],
    }


def _idle(given: dict[str, Any]) -> Iterator[Problem]:
    switches = {
        "rollout_is_threshold": ("rollout_is", "rollout_rs"),
        "rollout_rs_threshold": ("rollout_rs",),
        "rollout_rs_threshold_lower": ("rollout_rs",),
    }
    for name, needed in switches.items():
        if given[name] != DEFAULTS[name] and all(given[switch] is None for switch in needed):
            keys = " or ".join(f"{SECTION}.{switch}" for switch in needed)
            wrong = f"is {given[name]}, but nothing reads it while {' and '.join(needed)} are null"
            yield Problem(f"{SECTION}.{name}", wrong, f"{keys} next to it", f"set {keys}=token, or remove it")


def _inexpressible(given: dict[str, Any]) -> Iterator[Problem]:
    weights, rejection = given["rollout_is"], given["rollout_rs"]
    if weights is None or rejection is None:
        return
    key, other = f"{SECTION}.rollout_rs", f"{SECTION}.rollout_is"
    if weights != rejection:
        wrong = f"is {rejection}, but {other} is {weights}: weights and rejection share one level here"
        yield Problem(key, wrong, "the same level", f"set {key}={weights}, or one of the two to null", (other,))
    upper, cut = given["rollout_rs_threshold"], given["rollout_is_threshold"]
    if isinstance(upper, float) and isinstance(cut, float) and upper > cut:
        wrong = f"keeps weights up to {upper:g}, but rollout_is_threshold cuts them at {cut:g}: here none is cut"
        fix = f"set {key}_threshold={cut:g}, or {other}_threshold={upper:g}"
        yield Problem(f"{key}_threshold", wrong, "at most rollout_is_threshold", fix, (f"{other}_threshold",))


def _conflicts(wanted: dict[str, Any], tree: Tree, user_keys: set[str]) -> Iterator[Problem]:
    for name, value in wanted.items():
        for key in (f"algorithm.{name}", f"actor_rollout_ref.actor.{name}"):
            if key in user_keys and get(tree, key) not in (value, PLAIN[name]):
                wrong = f"is {get(tree, key)!r}, but {SECTION} says {value!r}"
                yield Problem(key, wrong, "one of the two places", f"remove {key}, or {SECTION}", (SECTION,))
