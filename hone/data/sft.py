"""Demonstrations for supervised fine-tuning: token ids with a mask over the assistant's own tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from hone.data.chat import Message, as_messages, render, require_chat_template
from hone.data.files import read_rows
from hone.data.prompts import choose_rows
from hone.data.truncation import check_truncation, cut
from hone.errors import UserError


@dataclass
class SFTSample:
    row: int  # index over all files laid end to end
    input_ids: list[int]
    loss_mask: list[int]  # 1 on the assistant's text and the end token after it, 0 on everything else


class SFTDataset:
    """Rows with a prompt and a response; or, with `messages_key`, conversations with all assistant turns trained."""

    def __init__(
        self,
        files: str | Path | Sequence[str | Path],
        *,
        tokenizer: Any,
        max_length: int,
        prompt_key: str = "prompt",
        response_key: str = "response",
        messages_key: str | None = None,
        truncation: str = "error",
        max_samples: int = -1,
        shuffle: bool = False,
        seed: int = 42,
    ) -> None:
        check_truncation(truncation, ("error", "left", "right"))
        require_chat_template(tokenizer)
        self.rows = read_rows(files)
        self.messages_key = messages_key
        self.prompt_key = prompt_key
        self.response_key = response_key
        if messages_key:
            self.rows.require(messages_key, "data.messages_key")
        else:
            self.rows.require(prompt_key, "data.prompt_key")
            self.rows.require(response_key, "data.response_key")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.truncation = truncation
        self.kept = choose_rows(len(self.rows), max_samples=max_samples, shuffle=shuffle, seed=seed)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> SFTSample:
        row = int(self.kept[index])
        where = self.rows.where(row)
        messages = self._conversation(row) if self.messages_key else self._prompt_and_response(row)
        turns = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
        if not self.messages_key:
            turns = turns[-1:]  # assistant turns inside the prompt are context, not demonstrations
        return self._fitted(row, *mask_turns(self.tokenizer, messages, turns, where=where))

    def _conversation(self, row: int) -> list[Message]:
        where = f"{self.rows.where(row)}, column '{self.messages_key}'"
        return as_messages(self.rows[row][self.messages_key], where)

    def _prompt_and_response(self, row: int) -> list[Message]:
        record, where = self.rows[row], self.rows.where(row)
        response = record[self.response_key]
        if not isinstance(response, str):
            raise UserError(f"{where}, column '{self.response_key}': expected a text, found {response!r:.80}.")
        prompt = as_messages(record[self.prompt_key], f"{where}, column '{self.prompt_key}'")
        return [*prompt, {"role": "assistant", "content": response}]

    def _fitted(self, row: int, input_ids: list[int], loss_mask: list[int]) -> SFTSample:
        where, length, limit = self.rows.where(row), len(input_ids), self.max_length
        if length > limit and self.truncation == "error":
            raise UserError(
                f"{where}: the rendered conversation has {length} tokens, more than data.max_length={limit}. "
                "Raise data.max_length, or set data.truncation to left or right."
            )
        input_ids, loss_mask = cut(input_ids, limit, self.truncation), cut(loss_mask, limit, self.truncation)
        # The first token has nothing before it to be predicted from.
        if not any(loss_mask[1:]):
            raise UserError(
                f"{where}: nothing to train on, no assistant token is left"
                + (f" of {length} after truncation to data.max_length={limit}." if length > limit else ".")
                + " Raise data.max_length or remove the row."
            )
        return SFTSample(row, input_ids, loss_mask)


def mask_turns(tokenizer: Any, messages: list[Message], turns: list[int], *, where: str) -> tuple[list[int], list[int]]:
    """Token ids of the whole conversation, and a mask that is 1 on the given assistant turns."""
    ids = render(tokenizer, messages, add_generation_prompt=False, where=where)
    mask = [0] * len(ids)
    for turn in turns:
        start = _turn_start(tokenizer, messages, turn, ids, where)
        end = _turn_end(tokenizer, messages, turn, ids, where)
        mask[start:end] = [1] * (end - start)
    return ids, mask


def _turn_start(tokenizer: Any, messages: list[Message], turn: int, ids: list[int], where: str) -> int:
    """The turn begins where the prompt that generation would see ends: training and sampling see the same ids."""
    prompt = render(tokenizer, messages[:turn], add_generation_prompt=True, where=where)
    if ids[: len(prompt)] != prompt:
        raise UserError(
            f"{where}, message {turn}: the chat template renders the turns before it differently once the conversation "
            "goes on (some templates strip earlier reasoning). Split the row so that this turn is its last one."
        )
    return len(prompt)


def _turn_end(tokenizer: Any, messages: list[Message], turn: int, ids: list[int], where: str) -> int:
    """The position after the end token that the template puts behind the turn's text.

    What follows the text does not depend on it: it is what the conversation's ids have in common, counted from the
    end, with those of the same conversation with other texts in this turn. Two texts: one may end like the real one.
    """
    following = len(ids)
    for text in ("a", "b"):
        other = [*messages[:turn], {"role": "assistant", "content": text}, *messages[turn + 1 :]]
        other_ids = render(tokenizer, other, add_generation_prompt=False, where=where)
        pairs = zip(reversed(ids), reversed(other_ids))
        following = min(following, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return len(ids) - max(following - 1, 0)
