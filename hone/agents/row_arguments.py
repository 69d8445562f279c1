"""What a row says to the tools and the interaction of its trajectories, in `extra_info`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hone.data.prompts import Sample
from hone.errors import UserError


def tool_arguments(sample: Sample, tools: Collection[str]) -> dict[str, dict[str, Any]]:
    """Tool -> its create_kwargs, from `tools_kwargs: {TOOL: {create_kwargs: {...}}}`. Parquet fills what other rows
    have with nulls: they are left out."""
    given = _mapping(sample.extra_info.get("tools_kwargs"), "extra_info.tools_kwargs")
    found: dict[str, dict[str, Any]] = {}
    for name, arguments in given.items():
        if name not in tools:
            raise UserError(f"extra_info.tools_kwargs names the tool {name!r}; there are {', '.join(tools) or 'none'}")
        where = f"extra_info.tools_kwargs.{name}"
        parts = _mapping(arguments, where)
        if unread := [part for part in parts if part != "create_kwargs" and parts[part]]:
            raise UserError(f"{where} has {', '.join(unread)}: only create_kwargs is read")
        found[name] = _mapping(parts.get("create_kwargs"), f"{where}.create_kwargs")
    return found


def interaction_arguments(
    sample: Sample, interactions: Collection[str], section: str
) -> tuple[str | None, dict[str, Any]]:
    """(the interaction's name, arguments for its `create`), from `interaction_kwargs: {name: ..., ...}`. Where there
    is one interaction only, it is everybody's. `section` is the place of the keys of conversations, for messages."""
    given = _mapping(sample.extra_info.get("interaction_kwargs"), "extra_info.interaction_kwargs")
    known = ", ".join(interactions)
    name = given.pop("name", None)
    if not interactions:
        if name is not None or given:
            raise UserError(
                f"extra_info.interaction_kwargs is set, and there is no interaction: set {section}."
                "interaction_config_path"
            )
        return None, {}
    if name is None and len(interactions) > 1:
        raise UserError(f"extra_info.interaction_kwargs.name is missing: expected one of {known}")
    if name is not None and name not in interactions:
        raise UserError(f"extra_info.interaction_kwargs.name is {name!r}; there are {known}")
    return (next(iter(interactions)) if name is None else name), given


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{where} is {value!r:.80}: expected an object with named values")
    return {name: entry for name, entry in value.items() if entry is not None}
