"""How token ids that are too long are cut to a limit."""

from typing import TypeVar

from hone.errors import UserError

CUTS = ("left", "right", "middle")
Token = TypeVar("Token", int, float)


def cut(ids: list[Token], limit: int, side: str) -> list[Token]:
    """left keeps the last tokens, right the first, middle the first limit//2 and the last limit - limit//2."""
    if len(ids) <= limit:
        return ids
    if side == "left":
        return ids[-limit:]
    if side == "right":
        return ids[:limit]
    head = limit // 2
    return ids[:head] + ids[-(limit - head) :]


def check_truncation(truncation: str, allowed: tuple[str, ...] = ("error", *CUTS)) -> None:
    if truncation not in allowed:
        raise UserError(f"data.truncation={truncation} is unknown: expected one of {', '.join(allowed)}.")
