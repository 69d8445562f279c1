"""What a tool, an interaction or a callback says to a conversation."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any


@dataclass(frozen=True)
class Reply:
    """content: what the model reads next
    reward:  added to the reward of the turn that is answered
    done:    ends the conversation; its content is then not read by anyone
    """

    content: str = ""
    reward: float = 0.0
    done: bool = False


def as_reply(value: Any) -> Reply:
    """A Reply as it is; a text, or anything that JSON can write, as its content. Raises TypeError for a Reply that is
    none."""
    if not isinstance(value, Reply):
        return Reply(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
    if not isinstance(value.content, str):
        raise TypeError(f"Reply.content is {value.content!r:.80}: expected a text")
    if not isinstance(value.reward, Real) or not math.isfinite(value.reward):
        raise TypeError(f"Reply.reward is {value.reward!r:.80}: expected a finite number")
    return value
