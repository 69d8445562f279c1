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
from hone.errors import UserError
from hone.models.load import ModelSource, load_causal_lm, load_tokenizer
from hone.models.names import as_saved
from hone.models.precision import stored_dtype
from hone.rollout.hf import HFEngine
from hone.rollout.interface import RolloutEngine, Sampling
from hone.training.engine import TorchEngine
from hone.workers.engine_groups import EngineElsewhere
from hone.workers.probe import PROMPTS, TOKENS, WeightProbe, allowed_difference
from hone.workers.rollout_engines import (
    ModelFacts,
    engine_dtype,
    generation_engine,
    shares_weights,
    training_engine,
)
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
        except asyncio.CancelledError:  # also where an agent cancels itself; after the end nobody reads this
            result = UserError(f"the agent of row {task.sample.row} was cancelled")
        except Exception as error:
            result = error
        finished.put_nowait((task.index, result))

    def _text(self, trajectory: Trajectory) -> str:
        # An array: of a list, transformers checks the type of every id, which takes longer than to decode it.
        return str(self.tokenizer.decode(np.asarray(trajectory.response_ids), skip_special_tokens=True))


class RolloutWorker:
    """The rollout of an RL run. Engine hf shares the actor's tensors where they are whole in this process; any other
    engine has weights of its own, which are handed over before it first generates and after every update."""

    def __init__(self, config: PPOConfig, run: RunSettings, peers: Mapping[str, Any]) -> None:
        rollout = config.actor_rollout_ref.rollout
        actor = self.actor = peers["actor"]
        model = actor.engine.model
        if rollout.agent.agent_loop_path:
            load_agents(rollout.agent.agent_loop_path)
        self.shares = shares_weights(config, actor.engine)
        self.free_cache = rollout.free_cache_engine
        tokenizer = load_run_tokenizer(config)
        self.engine = training_engine(config, run, actor.engine, end_tokens(model, actor.tokenizer), tokenizer)
        self.stream = TrajectoryStream(
            self.engine,
            tokenizer,
            rollout.agent.default_agent_loop,
            vocabulary=vocabulary_of(model),
            max_model_len=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
            multi_turn=MultiTurn.of(rollout, tokenizer),
        )
        if not self.shares:
            self.probe = _probe(config, run, actor.engine, self.engine, tokenizer)
            self.update_weights(0)

    def rollout(self, tasks: Sequence[RolloutTask]) -> Iterator[tuple[int, Trajectory]]:
        loop = self.stream.loop
        loop.run_until_complete(self.engine.wake())
        with self.actor.engine.offload.weights() if self.shares else nullcontext():
            yield from self.stream(tasks)
        if self.free_cache:
            loop.run_until_complete(self.engine.sleep())

    def update_weights(self, version: int) -> None:
        loop = self.stream.loop
        if self.shares:
            loop.run_until_complete(self.engine.update_weights(None, version))
            return
        loop.run_until_complete(self.engine.update_weights(self._weights().items(), version))
        self.probe.after_hand_over(loop, version)
        if self.free_cache:
            loop.run_until_complete(self.engine.sleep())

    def _weights(self) -> dict[str, torch.Tensor]:
        """Whole, under the names that the engine knows: transformers' for hf, those of its files for any other."""
        engine = self.actor.engine
        return engine.weights() if isinstance(self.engine, HFEngine) else as_saved(engine.model, engine.weights())


def _probe(
    config: PPOConfig,
    run: RunSettings,
    trainer: TorchEngine,
    engine: RolloutEngine,
    tokenizer: PreTrainedTokenizerBase,
) -> WeightProbe:
    rollout = config.actor_rollout_ref.rollout
    asked = () if isinstance(engine, EngineElsewhere) else PROMPTS
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"][: rollout.prompt_length] for text in asked]
    dtypes = trainer.options.compute_dtype, engine_dtype(config, run, trainer)
    return WeightProbe(
        engine,
        trainer,
        prompts,
        name=rollout.engine,
        when=rollout.verify_weights,
        allowed=allowed_difference(*dtypes),
        tokens=min(TOKENS, rollout.response_length),
    )


class GenerationWorker:
    """Generation without training: each rank has a whole model of its own."""

    def __init__(self, config: GenerationConfig, run: RunSettings, peers: Mapping[str, Any]) -> None:
        rollout = config.rollout
        wanted = stored_dtype(config.model.path) if rollout.dtype == "auto" else rollout.dtype
        source = _generation_source(config, run, run.compute_dtype(wanted, "rollout.dtype"))
        model = load_causal_lm(source) if rollout.name == "hf" else ModelFacts.of(source)
        tokenizer = load_tokenizer(config.model.path, trust_remote_code=config.data.trust_remote_code)
        engine = generation_engine(config, source, model, run, end_tokens(model, tokenizer), tokenizer)
        if rollout.agent.agent_loop_path:
            load_agents(rollout.agent.agent_loop_path)
        self.rollout = TrajectoryStream(
            engine,
            tokenizer,
            rollout.agent.default_agent_loop,
            vocabulary=vocabulary_of(model),
            max_model_len=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
            multi_turn=MultiTurn.of(rollout, tokenizer, "rollout.multi_turn"),
        )


def _generation_source(config: GenerationConfig, run: RunSettings, dtype: torch.dtype) -> ModelSource:
    return run.source(
        config.model.path,
        config.model.override_config,
        model_dtype=str(dtype).removeprefix("torch."),
        trust_remote_code=config.model.trust_remote_code,
        external_lib=config.model.external_lib,
    )


def vocabulary_of(model: PreTrainedModel | ModelFacts) -> int:
    """How many token ids the model knows; the tokenizer may name fewer."""
    return int(model.config.get_text_config().vocab_size)


def end_tokens(model: PreTrainedModel | ModelFacts, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Every id that ends a response: the generation config's, the model config's and the tokenizer's."""
    found: set[int] = set()
    for value in (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id):
        found.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
    return found


def load_run_tokenizer(config: PPOConfig) -> PreTrainedTokenizerBase:
    model = config.actor_rollout_ref.model
    return load_tokenizer(config.data.tokenizer or model.path, trust_remote_code=config.data.trust_remote_code)
