"""Holds an agent to what it promises, so that a mistake in one is a message and not a traceback out of the trainer."""

from __future__ import annotations

import inspect
import logging
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import hone
from hone.agents import llm as llm_module
from hone.agents.llm import LLM, Agent
from hone.agents.trajectory import Trajectory, turn_ends
from hone.data.prompts import Sample
from hone.errors import UserError
from hone.user_code import quote

logger = logging.getLogger(__name__)

LARGEST = 3.4e38  # of fp32


@dataclass(frozen=True)
class CheckedAgent:
    """Makes and runs one agent; what it raises and returns is looked at once."""

    name: str
    make: Callable[[], Agent]

    async def run(self, sample: Sample, llm: LLM) -> Trajectory:
        file = _file_of(self.make)
        where = f"agent {self.name!r} ({file})"
        try:
            running = self.make().run(sample, llm)
            if not inspect.isawaitable(running):
                raise UserError(f"{where} cannot be awaited: write `async def run`")
            trajectory = await running
        except UserError:
            raise
        except SystemExit as problem:  # would end the whole run, and with exit(0) as if it had gone well
            raise UserError(f"{where} called exit: {quote(problem, file)}") from problem
        except Exception as problem:
            if _is_ours(file) or _is_the_engines(problem):
                raise
            raise UserError(f"{where} failed: {quote(problem, file)}") from problem
        _check(trajectory, where)
        _check_limits(trajectory, llm, where)
        return trajectory


def _file_of(agent: Callable[[], Agent]) -> str | None:
    try:
        return inspect.getfile(inspect.unwrap(agent))
    except TypeError:  # such as a functools.partial
        return None


def _is_ours(file: str | None) -> bool:
    return file is not None and Path(file).is_relative_to(Path(hone.__file__).parent)


def _is_the_engines(problem: Exception) -> bool:
    """Whether it came out of the engine that `llm.generate` called, and not of the call itself."""
    files = [frame.filename for frame in traceback.extract_tb(problem.__traceback__)]
    return llm_module.__file__ in files and files[-1] != llm_module.__file__


def _check(trajectory: Any, where: str) -> None:
    if not isinstance(trajectory, Trajectory):
        kind = type(trajectory).__name__
        raise UserError(f"{where} returned {trajectory!r:.80} ({kind}): expected a hone.agents.Trajectory")
    for name in COLUMNS:
        _check_column(getattr(trajectory, name), name, where)
    if len(trajectory.prompt_ids) == 0:
        raise UserError(f"{where}: Trajectory.prompt_ids is empty: expected at least one token before the response")
    lengths = {name: len(getattr(trajectory, name)) for name in RESPONSE}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UserError(f"{where}: the columns of a response have one entry per token, but their lengths are {found}")
    if trajectory.num_turns is not None and not isinstance(trajectory.num_turns, Integral):
        raise UserError(f"{where}: Trajectory.num_turns is {trajectory.num_turns!r:.80}: expected an integer or None")
    if trajectory.stop_reason not in STOP_REASONS:
        expected = " or ".join(map(repr, STOP_REASONS))
        raise UserError(f"{where}: Trajectory.stop_reason is {trajectory.stop_reason!r:.80}: expected {expected}")
    rewards = len(trajectory.turn_rewards)
    if rewards and rewards > (turns := len(turn_ends(trajectory.response_mask))):
        raise UserError(f"{where}: {rewards} turn_rewards for {turns} turns (runs of 1 in response_mask)")


def _check_limits(trajectory: Trajectory, llm: LLM, where: str) -> None:
    """What the rest of the run was planned for: the model's vocabulary, and a longest response."""
    for name in ("prompt_ids", "response_ids"):
        largest = max(getattr(trajectory, name), default=0)
        if llm.vocabulary is not None and largest >= llm.vocabulary:
            known = f"below {llm.vocabulary}, which the model knows"
            raise UserError(f"{where}: Trajectory.{name} has {largest}: expected token ids {known}")
    tokens, most = len(trajectory.response_ids), llm.sampling.max_tokens
    if tokens > most:
        raise UserError(
            f"{where}: {tokens} response tokens, sampled and inserted ones together: expected at most {most} "
            "(data.max_response_length); stop earlier, or hand generate what is left as max_tokens"
        )
    if not any(trajectory.response_mask):
        _warn_untrainable(where)
    room = None if llm.max_model_len is None else llm.max_model_len - most
    if room is not None and len(trajectory.prompt_ids) > room:
        _warn_long_prompt(where, room)


@cache
def _warn_untrainable(where: str) -> None:
    """Once an agent: it may well give up on a task."""
    logger.warning("%s returned a trajectory without a sampled token (1 in response_mask): nothing to train on", where)


@cache
def _warn_long_prompt(where: str, room: int) -> None:
    """Once an agent: it is no mistake where there is memory for it."""
    logger.warning(
        "%s returned a prompt of more than the %d tokens that data.max_prompt_length allows: it is kept whole, "
        "and takes more memory than was planned",
        where,
        room,
    )


def _check_column(values: Any, name: str, where: str) -> None:
    fits, expected = COLUMNS[name]
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise UserError(f"{where}: Trajectory.{name} is {values!r:.80}: expected a list of {expected}")
    values = list(values)
    if not fits(values):
        place = next(i for i, value in enumerate(values) if not fits([value]))
        found = f"has {values[place]!r:.80} at place {place}"
        raise UserError(f"{where}: Trajectory.{name} {found}: expected a list of {expected}")


def _all(kind: type, values: list[Any]) -> bool:
    # By the few types that there are, since a step may have millions of tokens.
    return all(issubclass(found, kind) for found in set(map(type, values)))


def _token_ids(values: list[Any]) -> bool:
    return _all(Integral, values) and min(values, default=0) >= 0


def _zeros_and_ones(values: list[Any]) -> bool:
    return all(value in (0, 1) for value in values)


def _finite(values: list[Any]) -> bool:
    return _all(Real, values) and max(map(abs, values), default=0) <= LARGEST and all(map(math.isfinite, values))


# name -> (whether a list is right, what it should hold)
COLUMNS: dict[str, tuple[Callable[[list[Any]], bool], str]] = {
    "prompt_ids": (_token_ids, "token ids"),
    "response_ids": (_token_ids, "token ids"),
    "response_mask": (_zeros_and_ones, "0 and 1"),
    "logprobs": (_finite, "finite numbers"),
    "versions": (lambda values: _all(Integral, values), "integers"),
    "turn_rewards": (_finite, "finite numbers"),
}
STOP_REASONS = ("stop", "length")
RESPONSE = ("response_ids", "response_mask", "logprobs", "versions")
