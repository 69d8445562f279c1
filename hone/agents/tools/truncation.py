"""Answers of tools that are too long for a conversation."""

from __future__ import annotations

from typing import Literal

Side = Literal["left", "middle", "right"]


def shorten(text: str, limit: int, side: Side) -> str:
    """`limit` characters of a longer text, with a mark where `side` was cut off."""
    if len(text) <= limit:
        return text
    mark = f"...({len(text) - limit} characters cut)..."
    if side == "left":
        return mark + text[-limit:]
    if side == "right":
        return text[:limit] + mark
    return text[: limit - limit // 2] + mark + (text[-(limit // 2) :] if limit > 1 else "")
