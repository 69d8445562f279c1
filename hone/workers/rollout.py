"""One replica of a rollout engine and the agents that run against it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hone.agents import LLM, MultiTurn, Trajectory, compact, load_agents, make_agent
from hone.config.schema.generation import GenerationConfig
from hone.config.schema.ppo import PPOConfig
from hone.data.prompts import Sample
from hone.models.load import ModelSource, load_causal_lm, load_tokenizer
from hone.models.precision import stored_dtype
from hone.rollout.hf import HFEngine
from hone.rollout.interface import RolloutEngine, Sampling
from hone.workers.build import frozen_source
from hone.workers.settings import RunSettings


@dataclass(frozen=True)
class RolloutTask:
    """One trajectory to make; `index` tells the driver which, since they come back as they finish."""

    index: int
    sample: Sample
    sampling: Sampling


class TrajectoryStream:
    """Runs one agent per task against an engine and yields (index, trajectory) as they finish, in their compact form
    with their text."""

    def __init__(
        self,
        engine: RolloutEngine,
        tokenizer: PreTrainedTokenizerBase,
        default_agent: str = "single_turn",
        *,
        vocabulary: int | None = None,
        max_model_len: int | None = None,
        multi_turn: MultiTurn | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.default_agent = default_agent
        self.llm = LLM(
            engine,
            Sampling(max_tokens=1),
            vocabulary,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            multi_turn=multi_turn,
        )
        self.loop = asyncio.new_event_loop()

    def __call__(self, tasks: Sequence[RolloutTask]) -> Iterator[tuple[int, Trajectory]]:
        finished: asyncio.Queue[tuple[int, Trajectory | BaseException]] = asyncio.Queue()
        running = [self.loop.create_task(self._run(task, finished)) for task in tasks]
        try:
            for _ in running:
                index, result = self._next(finished)
                if isinstance(result, BaseException):
                    raise result
                yield index, result
        finally:
            for task in running:
                task.cancel()
            self.loop.run_until_complete(self._ended(running))

    def _next(self, finished: asyncio.Queue[Any]) -> tuple[int, Trajectory | BaseException]:
        try:
            return finished.get_nowait()
        except asyncio.QueueEmpty:
            return self.loop.run_until_complete(finished.get())

    async def _ended(self, running: Sequence[asyncio.Task[None]]) -> None:
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, task: RolloutTask, finished: asyncio.Queue[Any]) -> None:
        try:
            agent = make_agent(task.sample.agent_name or self.default_agent)
            trajectory = await agent.run(task.sample, replace(self.llm, sampling=task.sampling))
            result: Any = compact(trajectory, self._text(trajectory))
        except Exception as error:
            result = error
        finished.put_nowait((task.index, result))

    def _text(self, trajectory: Trajectory) -> str:
        # An array: of a list, transformers checks the type of every id, which takes longer than to decode it.
        return str(self.tokenizer.decode(np.asarray(trajectory.response_ids), skip_special_tokens=True))


class RolloutWorker:
    """The rollout of an RL run. It shares the actor's tensors where they are whole in this process; where they are
    sharded over ranks it has a copy of its own, which every hand-over fills anew."""

    def __init__(self, config: PPOConfig, run: RunSettings, peers: Mapping[str, Any]) -> None:
        rollout = config.actor_rollout_ref.rollout
        actor = self.actor = peers["actor"]
        self.shares = actor.engine.sharding.whole
        model = actor.engine.model if self.shares else load_causal_lm(frozen_source(config, run)).requires_grad_(False)
        if rollout.agent.agent_loop_path:
            load_agents(rollout.agent.agent_loop_path)
        self.free_cache = rollout.free_cache_engine
        self.engine = HFEngine(
            model,
            eos_token_ids=end_tokens(model, actor.tokenizer),
            max_num_seqs=rollout.max_num_seqs,
            max_num_batched_tokens=rollout.max_num_batched_tokens,
            max_model_len=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
            compute_dtype=actor.engine.options.compute_dtype,
        )
        tokenizer = load_run_tokenizer(config)
        self.stream = TrajectoryStream(
            self.engine,
            tokenizer,
            rollout.agent.default_agent_loop,
            vocabulary=vocabulary_of(model),
            max_model_len=self.engine.max_model_len,
            multi_turn=MultiTurn.of(rollout, tokenizer),
        )

    def rollout(self, tasks: Sequence[RolloutTask]) -> Iterator[tuple[int, Trajectory]]:
        loop = self.stream.loop
        loop.run_until_complete(self.engine.wake())
        with self.actor.engine.offload.weights() if self.shares else nullcontext():
            yield from self.stream(tasks)
        if self.free_cache:
            loop.run_until_complete(self.engine.sleep())

    def update_weights(self, version: int) -> None:
        weights = None if self.shares else self.actor.engine.weights().items()
        self.stream.loop.run_until_complete(self.engine.update_weights(weights, version))


class GenerationWorker:
    """Generation without training: each rank has a whole model of its own."""

    def __init__(self, config: GenerationConfig, run: RunSettings, peers: Mapping[str, Any]) -> None:
        rollout = config.rollout
        wanted = stored_dtype(config.model.path) if rollout.dtype == "auto" else rollout.dtype
        dtype = run.compute_dtype(wanted, "rollout.dtype")
        model = load_causal_lm(_generation_source(config, run, dtype))
        tokenizer = load_tokenizer(config.model.path, trust_remote_code=config.data.trust_remote_code)
        engine = HFEngine(
            model,
            eos_token_ids=end_tokens(model, tokenizer),
            max_num_seqs=rollout.max_num_seqs,
            max_num_batched_tokens=rollout.max_num_batched_tokens,
            max_model_len=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
            compute_dtype=dtype,
        )
        self.rollout = TrajectoryStream(
            engine, tokenizer, vocabulary=vocabulary_of(model), max_model_len=engine.max_model_len
        )


def _generation_source(config: GenerationConfig, run: RunSettings, dtype: torch.dtype) -> ModelSource:
    return run.source(
        config.model.path,
        config.model.override_config,
        model_dtype=str(dtype).removeprefix("torch."),
        trust_remote_code=config.model.trust_remote_code,
        external_lib=config.model.external_lib,
    )


def vocabulary_of(model: PreTrainedModel) -> int:
    """How many token ids the model knows; the tokenizer may name fewer."""
    return int(model.config.get_text_config().vocab_size)


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Every id that ends a response: the generation config's, the model config's and the tokenizer's."""
    found: set[int] = set()
    for value in (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id):
        found.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
    return found


def load_run_tokenizer(config: PPOConfig) -> PreTrainedTokenizerBase:
    model = config.actor_rollout_ref.model
    return load_tokenizer(config.data.tokenizer or model.path, trust_remote_code=config.data.trust_remote_code)
