"""Prompts for RL, evaluation and generation: rows rendered by the chat template and fitted to a length."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hone.data.chat import Conversation, Message, Tools, as_prompt, render, require_chat_template
from hone.data.files import read_rows
from hone.data.lengths import measure, refuse_longer
from hone.data.schema import ground_truth
from hone.data.truncation import check_truncation, cut
from hone.errors import UserError

logger = logging.getLogger(__name__)

CHOICE_STREAM = 0xC401CE  # apart from other uses of the same seed
REMEDY = (
    "Raise data.max_prompt_length, set data.truncation to left, right or middle, or drop such rows with "
    "data.filter_overlong_prompts=True."
)


@dataclass
class Sample:
    row: int  # index over all files laid end to end
    prompt_ids: list[int]
    messages: list[Message]
    data_source: str
    ground_truth: Any
    extra_info: dict[str, Any]
    agent_name: str | None
    uid: str  # trajectories of the same prompt share it: the group that advantages compare within


class PromptDataset:
    """The rows of `files` that stay after sampling and filtering; item i is a `Sample`, rendered on access.

    Their mistakes are found when the data set is made, not when a row is drawn in the middle of a run. `length_key` and
    `remedy` are what a user reads of prompts that are too long. `tools` are the schemas that the template shows.
    `check` raises UserError for a row that the run could not use; the row is named before its message.
    """

    def __init__(
        self,
        files: str | Path | Sequence[str | Path],
        *,
        tokenizer: Any,
        max_prompt_length: int,
        prompt_key: str = "prompt",
        reward_fn_key: str | None = "data_source",
        image_key: str = "images",
        video_key: str = "videos",
        truncation: str = "error",
        filter_overlong_prompts: bool = False,
        filter_overlong_prompts_workers: int = 1,
        max_samples: int = -1,
        shuffle: bool = False,
        seed: int = 42,
        length_key: str = "data.max_prompt_length",
        remedy: str = REMEDY,
        tools: Tools = None,
        check: Callable[[Sample], None] | None = None,
    ) -> None:
        check_truncation(truncation)
        require_chat_template(tokenizer)
        self.rows = read_rows(files)
        self.rows.require(prompt_key, "data.prompt_key")
        if reward_fn_key is not None:  # None: nobody is going to score the answers
            self.rows.require(reward_fn_key, "data.reward_fn_key")
        self._refuse_multimodal((image_key, video_key))
        self.tokenizer = tokenizer
        self.prompt_key = prompt_key
        self.reward_fn_key = reward_fn_key
        self.tools = tools
        self.check = check
        self.max_prompt_length = max_prompt_length
        self.truncation = truncation
        self.kept = choose_rows(len(self.rows), max_samples=max_samples, shuffle=shuffle, seed=seed)
        self.kept = self._fitting(
            filter_overlong=filter_overlong_prompts,
            workers=filter_overlong_prompts_workers,
            length_key=length_key,
            remedy=remedy,
        )

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Sample:
        sample = self._read(int(self.kept[index]))
        where = self._where(sample.row)
        ids = render(self.tokenizer, sample.messages, add_generation_prompt=True, where=where, tools=self.tools)
        sample.prompt_ids = cut(ids, self.max_prompt_length, self.truncation)
        return sample

    def _read(self, index: int) -> Sample:
        """A row's sample without its token ids, which take longer than all the rest."""
        row, key = self.rows[index], self.reward_fn_key
        agent = row.get("agent_name")
        return Sample(
            row=index,
            prompt_ids=[],
            messages=as_prompt(row.value(self.prompt_key, "data.prompt_key"), self._where(index)),
            data_source="" if key is None else str(row.value(key, "data.reward_fn_key")),
            ground_truth=ground_truth(row),
            extra_info=row.mapping("extra_info"),
            agent_name=None if agent is None else str(agent),
            uid=str(index),
        )

    def _where(self, row: int) -> str:
        return f"{self.rows.where(row)}, column '{self.prompt_key}'"

    def _conversations(self) -> Iterator[Conversation]:
        for row in map(int, self.kept):
            sample = self._read(row)
            self._check(sample)
            yield sample.messages, self._where(row)

    def _check(self, sample: Sample) -> None:
        if self.check is None:
            return
        try:
            self.check(sample)
        except UserError as problem:
            raise UserError(f"{self.rows.where(sample.row)}: {problem}") from problem

    def _refuse_multimodal(self, keys: tuple[str, str]) -> None:
        for key in keys:
            for row, value in enumerate(self.rows.column(key)):
                if value:
                    raise UserError(
                        f"{self.rows.where(row)} has {key}: multimodal input is not built. Use text-only rows."
                    )

    def _fitting(self, *, filter_overlong: bool, workers: int, length_key: str, remedy: str) -> np.ndarray:
        """The rows to keep; raises UserError for the first with a mistake, and for prompts that are too long."""
        if not filter_overlong and self.truncation != "error":
            for _ in self._conversations():  # reading a row is what finds its mistakes
                pass
            return self.kept
        lengths = measure(
            self.tokenizer,
            self._conversations(),
            total=len(self.kept),
            add_generation_prompt=True,
            workers=workers,
            tools=self.tools,
        )
        if filter_overlong:
            return self._without_overlong(lengths)
        refuse_longer(
            lengths,
            self.max_prompt_length,
            key=length_key,
            what="prompt",
            where=lambda i: self._where(int(self.kept[i])),
            remedy=remedy,
        )
        return self.kept

    def _without_overlong(self, lengths: np.ndarray) -> np.ndarray:
        total, kept = len(self.kept), self.kept[lengths <= self.max_prompt_length]
        limit = f"data.max_prompt_length={self.max_prompt_length}"
        logger.info("dropped %d of %d prompts longer than %s", total - len(kept), total, limit)
        if not len(kept):
            raise UserError(f"All {total} prompts are longer than {limit} (the shortest: {lengths.min()}). Raise it.")
        return kept


def choose_rows(num_rows: int, *, max_samples: int, shuffle: bool, seed: int) -> np.ndarray:
    """Indices of the rows to use: all for -1, a seeded choice without replacement when shuffling, else the first."""
    if num_rows == 0:
        raise UserError("The data files have no rows: check data.train_files and data.val_files.")
    if max_samples != -1 and max_samples < 1:
        raise UserError(f"max_samples={max_samples} (data.*_max_samples): expected -1 for all rows, or 1 and more.")
    if max_samples == -1 or max_samples >= num_rows:
        return np.arange(num_rows)
    if not shuffle:
        return np.arange(max_samples)
    return np.sort(np.random.default_rng([CHOICE_STREAM, seed]).choice(num_rows, size=max_samples, replace=False))
