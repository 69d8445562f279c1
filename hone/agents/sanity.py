"""Whether the ids of a conversation that grew turn by turn are those of the conversation rendered at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

logger = logging.getLogger(__name__)

SHOWN = 30  # characters, or tokens, on either side of a difference


@dataclass(frozen=True)
class Difference:
    """Where the two part. text: the characters differ; else the same text is other tokens, which happens wherever the
    model samples another split of a word than the tokenizer would, and is harmless: what was sampled is trained."""

    text: bool
    place: int  # characters, or tokens, that are the same before it
    grown: str
    rendered: str

    def __str__(self) -> str:
        what = "text" if self.text else "tokens"
        return f"the {what} part after {self.place}: turn by turn {self.grown!r}, at once {self.rendered!r}"


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of ids, special tokens included and nothing tidied up."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def difference(tokenizer: Any, ids: Sequence[int], rendered: str) -> Difference | None:
    """None if `ids` are how `rendered` begins: a template closes the last turn, which a limit may have cut."""
    grown = decode(tokenizer, ids).rstrip("\N{REPLACEMENT CHARACTER}")  # half a character at a cut
    if not rendered.startswith(grown):
        place = _common(grown, rendered)
        return Difference(True, place, _around(grown, place), _around(rendered, place))
    at_once = tokenizer.encode(rendered, add_special_tokens=False)
    place = _common(ids, at_once)
    if place == len(ids):
        return None
    texts = (str(tokenizer.convert_ids_to_tokens(list(of[place : place + 3]))) for of in (ids, at_once))
    return Difference(False, place, *texts)


_said: set[bool | None] = set()


def warn(found: Difference | None) -> None:
    """Once for each kind: a run has many conversations."""
    if found is None or found.text in _said:
        return
    _said.add(found.text)
    if found.text:
        logger.warning(
            "tokenization check: %s. The chat template renders turns differently from how the model wrote them (some "
            "leave out reasoning, or write calls in another way): at inference later turns see another context than in "
            "training. multi_turn.use_inference_chat_template=True trains in that one; "
            "multi_turn.enable_tokenization_sanity_check=False switches the check off.",
            found,
        )
    else:
        logger.info("tokenization check: %s. The text is the same, so nothing is wrong.", found)


def warn_unrendered(problem: Exception) -> None:
    """Once in a run."""
    if None not in _said:
        _said.add(None)
        logger.warning("tokenization check: the chat template refuses a conversation that the model had: %s", problem)


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _around(text: str, place: int) -> str:
    return text[max(place - SHOWN, 0) : place + SHOWN]
