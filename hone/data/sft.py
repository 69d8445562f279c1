"""Demonstrations for supervised fine-tuning: token ids with a mask over the assistant's own tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hone.data.chat import Conversation, Message, as_messages, as_prompt, require_chat_template
from hone.data.files import read_rows
from hone.data.lengths import measure, refuse_longer
from hone.data.prompts import choose_rows
from hone.data.truncation import check_truncation, cut
from hone.data.turns import Demonstration, TurnMasks
from hone.errors import UserError

TOGETHER = 16  # rows rendered by one call; each at least twice


@dataclass
class SFTSample:
    row: int  # index over all files laid end to end
    input_ids: list[int]
    loss_mask: list[int]  # 1 on the assistant's text and the end token after it, 0 on everything else


class SFTDataset:
    """Rows with a prompt and a response; or, with `messages_key`, conversations with all assistant turns trained.

    What is wrong with a row, or too long, is found when the data set is made, not when the row is drawn.
    """

    def __init__(
        self,
        files: str | Path | Sequence[str | Path],
        *,
        tokenizer: Any,
        max_length: int,
        prompt_key: str = "prompt",
        response_key: str = "response",
        prompt_dict_keys: Sequence[str] = (),
        response_dict_keys: Sequence[str] = (),
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
        self.prompt_dict_keys = prompt_dict_keys
        self.response_dict_keys = response_dict_keys
        if messages_key:
            self.rows.require(messages_key, "data.messages_key")
        else:
            self.rows.require(prompt_key, "data.prompt_key")
            self.rows.require(response_key, "data.response_key")
        self.tokenizer = tokenizer
        self.mask = TurnMasks(tokenizer)
        self.max_length = max_length
        self.truncation = truncation
        self.kept = choose_rows(len(self.rows), max_samples=max_samples, shuffle=shuffle, seed=seed)
        self._check_lengths()

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> SFTSample:
        return self.samples([index])[0]

    def samples(self, indices: Sequence[int]) -> list[SFTSample]:
        """Several at once: rendering them together takes half the time."""
        rows = [int(self.kept[index]) for index in indices]
        return [
            sample for start in range(0, len(rows), TOGETHER) for sample in self._of(rows[start : start + TOGETHER])
        ]

    def _of(self, rows: list[int]) -> list[SFTSample]:
        masked = self.mask([self._demonstration(row) for row in rows])
        return [self._fitted(row, ids, mask) for row, (ids, mask) in zip(rows, masked, strict=True)]

    def _demonstration(self, row: int) -> Demonstration:
        messages = self._conversation(row)
        turns = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
        if not self.messages_key:
            turns = turns[-1:]  # assistant turns inside the prompt are context, not demonstrations
        return Demonstration(messages, turns, self.rows.where(row))

    def _conversation(self, row: int) -> list[Message]:
        return self._messages(row, self.messages_key) if self.messages_key else self._prompt_and_response(row)

    def _messages(self, index: int, column: str) -> list[Message]:
        row = self.rows[index]
        where = f"{row.where}, column '{column}'"
        messages = as_messages(row.value(column, "data.messages_key"), where)
        if messages[0]["role"] == "assistant":
            raise UserError(f"{where}: the conversation begins with the assistant. Put what it answers before it.")
        if all(message["role"] != "assistant" for message in messages):
            raise UserError(f"{row.where}: nothing to train on, the assistant has no turn. Remove the row.")
        _refuse_empty(messages, where)
        return messages

    def _prompt_and_response(self, index: int) -> list[Message]:
        row = self.rows[index]
        asked = row.inside(self.prompt_key, "data.prompt_key", self.prompt_dict_keys)
        prompt = as_prompt(asked, f"{row.where}, column '{self.prompt_key}'")
        response = row.text(self.response_key, "data.response_key", self.response_dict_keys)
        answer = as_messages([{"role": "assistant", "content": response}], f"{row.where}, column '{self.response_key}'")
        _refuse_empty(answer, f"{row.where}, column '{self.response_key}'")
        return [*prompt, *answer]

    def _conversations(self) -> Iterator[Conversation]:
        return ((self._conversation(int(row)), self.rows.where(int(row))) for row in self.kept)

    def _check_lengths(self) -> None:
        """Raises UserError for rows that are too long, or of which a cut leaves nothing to train on."""
        lengths = measure(self.tokenizer, self._conversations(), total=len(self.kept), add_generation_prompt=False)
        if self.truncation == "error":
            refuse_longer(
                lengths,
                self.max_length,
                key="data.max_length",
                what="conversation",
                where=lambda i: self.rows.where(int(self.kept[i])),
                remedy="Raise data.max_length, or set data.truncation to left or right.",
            )
        for index in np.flatnonzero(lengths > self.max_length):
            self[int(index)]

    def _fitted(self, row: int, input_ids: list[int], loss_mask: list[int]) -> SFTSample:
        length, limit = len(input_ids), self.max_length
        input_ids, loss_mask = cut(input_ids, limit, self.truncation), cut(loss_mask, limit, self.truncation)
        loss_mask = [0, *loss_mask[1:]]  # the first token has nothing before it to be predicted from
        if not any(loss_mask):
            raise UserError(
                f"{self.rows.where(row)}: nothing to train on, no assistant token is left"
                + (f" of {length} after truncation to data.max_length={limit}." if length > limit else ".")
                + " Raise data.max_length or remove the row."
            )
        return SFTSample(row, input_ids, loss_mask)


def _refuse_empty(messages: list[Message], where: str) -> None:
    """A turn without a text would teach the model to say nothing."""
    turns = [message for message in messages if message["role"] == "assistant"]
    if any(not (turn["content"] or "").strip() and not turn.get("tool_calls") for turn in turns):
        raise UserError(f"{where}: the assistant's text is empty: nothing to learn. Write one, or remove the row.")
