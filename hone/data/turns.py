"""Which tokens of a rendered conversation the assistant wrote, found by rendering alone: templates do not tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from hone.data.chat import Conversation, Message, render_all
from hone.errors import UserError

Masked = tuple[list[int], list[int]]  # token ids, and 1 on those to train
OTHER_TEXTS = ("a", "b")  # two: one may end like the real one


@dataclass(frozen=True)
class Demonstration:
    messages: list[Message]
    turns: list[int]  # indices of the assistant's messages to train
    where: str  # the row, for messages

    def prompts(self) -> Iterator[Conversation]:
        """What generation would see before each turn."""
        return ((self.messages[:turn], self.where) for turn in self.turns)

    def with_other_texts(self, turn: int) -> list[Conversation]:
        others = ({"role": "assistant", "content": text} for text in OTHER_TEXTS)
        return [([*self.messages[:turn], other, *self.messages[turn + 1 :]], self.where) for other in others]


class TurnMasks:
    """Masks the turns of several demonstrations at once, which takes half the time of one after the other."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.special = frozenset(tokenizer.all_special_ids)
        self.endings: dict[tuple[str, ...], list[int]] = {}  # ids after a last turn's text, by the messages' roles

    def __call__(self, demonstrations: Sequence[Demonstration]) -> list[Masked]:
        """Token ids of each whole conversation, and a mask that is 1 on its turns and on the end token after each.

        Raises UserError for messages that the template refuses or renders differently once the conversation goes on.
        """
        wholes = [(d.messages, d.where) for d in demonstrations]
        prompts = [prompt for d in demonstrations for prompt in d.prompts()]
        rendered = render_all(self.tokenizer, wholes, add_generation_prompt=False)
        rendered_prompts = iter(render_all(self.tokenizer, prompts, add_generation_prompt=True))
        return [self._mask(d, ids, rendered_prompts) for d, ids in zip(demonstrations, rendered, strict=True)]

    def _mask(self, demonstration: Demonstration, ids: list[int], prompts: Iterator[list[int]]) -> Masked:
        mask = [0] * len(ids)
        for turn in demonstration.turns:
            start = _turn_start(ids, next(prompts), f"{demonstration.where}, message {turn}")
            end_token = min(1, following := self._following(demonstration, turn, ids))
            end = len(ids) - following + end_token
            mask[start:end] = [1] * (end - start)
        return ids, mask

    def _following(self, demonstration: Demonstration, turn: int, ids: list[int]) -> int:
        """How many tokens follow the turn's text.

        What the template puts behind a last turn is looked up once it is known. Not where it begins with an ordinary
        token, which may be one with the end of one text and not of another.
        """
        roles = tuple(message["role"] for message in demonstration.messages)
        last = turn == len(roles) - 1
        if last and roles in self.endings and ids[-len(self.endings[roles]) :] == self.endings[roles]:
            return len(self.endings[roles])
        following = self._compare(demonstration, turn, ids)
        if last and following and ids[-following] in self.special:
            self.endings[roles] = ids[-following:]
        return following

    def _compare(self, demonstration: Demonstration, turn: int, ids: list[int]) -> int:
        """What follows the text does not depend on it: it is what the conversation's ids have in common, counted from
        the end, with those of the same conversation with other texts in this turn."""
        others = render_all(self.tokenizer, demonstration.with_other_texts(turn), add_generation_prompt=False)
        return min(_common_end(ids, other) for other in others)


def _turn_start(ids: list[int], prompt: list[int], where: str) -> int:
    """The turn begins where the prompt that generation would see ends: training and sampling see the same ids."""
    if ids[: len(prompt)] != prompt:
        raise UserError(
            f"{where}: the chat template renders the turns before it differently once the conversation goes on (some "
            "templates strip earlier reasoning). Split the row so that this turn is its last one."
        )
    return len(prompt)


def _common_end(ids: list[int], other: list[int]) -> int:
    pairs = zip(reversed(ids), reversed(other))
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
