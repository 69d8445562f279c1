"""Prompts for RL, evaluation and generation: rows rendered by the chat template and fitted to a length."""

import logging
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from hone.data.chat import Message, as_messages, render, require_chat_template
from hone.data.files import read_rows
from hone.data.truncation import check_truncation, cut
from hone.errors import UserError

logger = logging.getLogger(__name__)

CHOICE_STREAM = 0xC401CE  # apart from other uses of the same seed


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
    """The rows of `files` that stay after sampling and filtering; item i is a `Sample`, rendered on access."""

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
        self.max_prompt_length = max_prompt_length
        self.truncation = truncation
        self.kept = choose_rows(len(self.rows), max_samples=max_samples, shuffle=shuffle, seed=seed)
        if filter_overlong_prompts:
            self.kept = self._drop_overlong(self.kept, workers=filter_overlong_prompts_workers)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Sample:
        row = int(self.kept[index])
        record = self.rows[row]
        messages = as_messages(record[self.prompt_key], self._where(row))
        return Sample(
            row=row,
            prompt_ids=self._fitted_ids(row, messages),
            messages=messages,
            data_source="" if self.reward_fn_key is None else str(record[self.reward_fn_key]),
            ground_truth=(record.get("reward_model") or {}).get("ground_truth"),
            extra_info=record.get("extra_info") or {},
            agent_name=record.get("agent_name"),
            uid=str(row),
        )

    def _where(self, row: int) -> str:
        return f"{self.rows.where(row)}, column '{self.prompt_key}'"

    def _fitted_ids(self, row: int, messages: list[Message]) -> list[int]:
        ids = render(self.tokenizer, messages, add_generation_prompt=True, where=self._where(row))
        if len(ids) > self.max_prompt_length and self.truncation == "error":
            raise UserError(
                f"{self._where(row)}: the rendered prompt has {len(ids)} tokens, more than "
                f"data.max_prompt_length={self.max_prompt_length}. Raise data.max_prompt_length, set data.truncation "
                "to left, right or middle, or drop such rows with data.filter_overlong_prompts=True."
            )
        return cut(ids, self.max_prompt_length, self.truncation)

    def _refuse_multimodal(self, keys: tuple[str, str]) -> None:
        for key in keys:
            for row, value in enumerate(self.rows.column(key)):
                if value:
                    raise UserError(
                        f"{self.rows.where(row)} has {key}: multimodal input is not built. Use text-only rows."
                    )

    def _drop_overlong(self, rows: np.ndarray, *, workers: int) -> np.ndarray:
        prompts = ((self.rows[int(row)][self.prompt_key], self._where(int(row))) for row in rows)
        measure = partial(prompt_length, self.tokenizer)
        if workers > 1:
            # spawn: a fork of a process that runs torch's threads may hang.
            with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
                lengths = np.array(list(pool.map(measure, prompts, chunksize=256)))
        else:
            lengths = np.array([measure(prompt) for prompt in prompts])
        kept = rows[lengths <= self.max_prompt_length]
        limit = f"data.max_prompt_length={self.max_prompt_length}"
        logger.info("dropped %d of %d prompts longer than %s", len(rows) - len(kept), len(rows), limit)
        if not len(kept):
            raise UserError(
                f"All {len(rows)} prompts are longer than {limit} (the shortest: {lengths.min()}). Raise it."
            )
        return kept


def prompt_length(tokenizer: Any, prompt: tuple[Any, str]) -> int:
    """Tokens of a rendered prompt, given its column's value and the place to name in an error."""
    value, where = prompt
    return len(render(tokenizer, as_messages(value, where), add_generation_prompt=True, where=where))


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
