"""Everything an RL run needs before its first step: data, order, worker groups, the sampler, plans and loggers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from hone.agents import Surroundings
from hone.cluster import Executor, Role, WorkerGroup
from hone.config import Loaded
from hone.config.schema.ppo import PPOConfig
from hone.data.order import BatchOrder
from hone.data.prompts import PromptDataset
from hone.models.load import load_tokenizer
from hone.rewards.manager import PROCESSES, RewardManager
from hone.rewards.scorers import default_compute_score
from hone.tracking.loggers import Tracker
from hone.tracking.run_directory import write_config
from hone.tracking.timing import TrainingCost
from hone.trainers.row_checks import load_conversations, row_check
from hone.trainers.sampling import Sampler
from hone.trainers.token_selection import token_selector
from hone.trainers.updates import UpdatePlan
from hone.user_code import load_function
from hone.workers.actor import ActorWorker, ReferenceWorker, loss_params
from hone.workers.critic import CriticWorker
from hone.workers.rollout import RolloutWorker
from hone.workers.rollout_engines import ranks_per_engine
from hone.workers.settings import RunSettings

logger = logging.getLogger(__name__)


@dataclass
class Setup:
    loaded: Loaded
    directory: Path
    tokenizer: PreTrainedTokenizerBase
    train_data: PromptDataset
    val_data: PromptDataset | None
    order: BatchOrder
    total_steps: int
    groups: Mapping[str, WorkerGroup]
    sampler: Sampler
    actor_plan: UpdatePlan
    critic_plan: UpdatePlan
    actor_cost: TrainingCost

    @contextmanager
    def track(self, done: int, last_line: Mapping[str, float]) -> Iterator[Tracker]:
        """The run's loggers, after `done` steps of which the last one logs `last_line`."""
        config: PPOConfig = self.loaded.config
        trainer = config.trainer
        write_config(self.directory, self.loaded.to_yaml(), done)
        tracker = Tracker(
            list(trainer.logger),
            project=trainer.project_name,
            experiment=trainer.experiment_name,
            directory=self.directory,
            config=config.model_dump(),
            done=done,
            last_line=last_line,
        )
        try:
            yield tracker
        finally:
            tracker.close()

    def say(self, message: str) -> None:
        logger.info(message)


def set_up(loaded: Loaded, executor: Executor) -> Setup:
    """Cheap things first: data and arithmetic are checked before any model is loaded."""
    config: PPOConfig = loaded.config
    tokenizer = load_tokenizer(
        config.data.tokenizer or config.actor_rollout_ref.model.path, trust_remote_code=config.data.trust_remote_code
    )
    surroundings = load_conversations(config)
    train_data = prompts(config, tokenizer, surroundings, training=True)
    val_data = prompts(config, tokenizer, surroundings, training=False) if config.data.val_files else None
    data = config.data
    order = BatchOrder(len(train_data), data.train_batch_size, seed=data.seed, shuffle=data.shuffle)
    total_steps = order.total_steps(config.trainer.total_training_steps, config.trainer.total_epochs)
    manager = RewardManager(_reward_function(config), processes=PROCESSES[config.reward_model.reward_manager])
    settings = RunSettings(executor.device(config.trainer.device), total_steps, config.trainer.seed, loaded.user_keys)
    torch.manual_seed(config.trainer.seed)
    groups = executor.start(roles(config, settings))
    return Setup(
        loaded=loaded,
        directory=Path(config.trainer.default_local_dir).expanduser(),
        tokenizer=tokenizer,
        train_data=train_data,
        val_data=val_data,
        order=order,
        total_steps=total_steps,
        groups=groups,
        sampler=Sampler(groups["rollout"], manager),
        actor_plan=actor_plan(config),
        critic_plan=critic_plan(config),
        actor_cost=TrainingCost.of_ranks(groups["actor"].call("cost")),
    )


def prompts(
    config: PPOConfig, tokenizer: PreTrainedTokenizerBase, surroundings: Surroundings, *, training: bool
) -> PromptDataset:
    """The run's prompts, or those that it is validated with."""
    data, conversing = config.data, config.actor_rollout_ref.rollout.multi_turn.enable
    files = data.train_files if training else data.val_files
    assert files is not None
    return PromptDataset(
        files,
        tokenizer=tokenizer,
        prompt_key=data.prompt_key,
        reward_fn_key=data.reward_fn_key,
        image_key=data.image_key,
        video_key=data.video_key,
        max_prompt_length=data.max_prompt_length,
        truncation=data.truncation,
        filter_overlong_prompts=data.filter_overlong_prompts,
        filter_overlong_prompts_workers=data.filter_overlong_prompts_workers,
        max_samples=data.train_max_samples if training else data.val_max_samples,
        shuffle=data.shuffle if training else data.validation_shuffle,
        seed=data.seed,
        tools=surroundings.schemas,
        check=row_check(
            scored_by_rules=config.custom_reward_function.path is None,
            surroundings=surroundings if conversing else None,
        ),
    )


def _reward_function(config: PPOConfig):  # type: ignore[no-untyped-def]
    custom = config.custom_reward_function
    return load_function(custom.path, custom.name) if custom.path else default_compute_score


def roles(config: PPOConfig, settings: RunSettings) -> dict[str, Role]:
    """In the order in which they are built: the actor compares itself with the reference, which may be the actor's own
    model, and the rollout shares the actor's weights."""
    arguments = {"config": config, "run": settings}
    policy, adapter = config.actor_rollout_ref, config.actor_rollout_ref.model.trains_adapter
    actor = {"actor": Role(ActorWorker, arguments, policy.actor.ulysses_sequence_parallel_size)}
    reference = {"ref": Role(ReferenceWorker, arguments, policy.ref.ulysses_sequence_parallel_size)}
    reference = reference if config.needs_reference else {}
    roles = {**actor, **reference} if adapter else {**reference, **actor}
    if config.trains_critic:
        roles["critic"] = Role(CriticWorker, arguments, config.critic.ulysses_sequence_parallel_size)
    roles["rollout"] = Role(RolloutWorker, arguments, ranks_per_engine(config))
    return roles


def actor_plan(config: PPOConfig) -> UpdatePlan:
    """How a step's trajectories train the policy."""
    actor = config.actor_rollout_ref.actor
    return UpdatePlan(
        mini_batch=actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n,
        epochs=actor.ppo_epochs,
        loss_agg_mode=actor.loss_agg_mode,
        scale_length=actor.loss_scale_factor or config.data.max_response_length,
        shuffle=actor.shuffle,
        seed=config.trainer.seed if actor.data_loader_seed is None else actor.data_loader_seed,
        selector=token_selector(actor.policy_loss.loss_mode, loss_params(actor)),
    )


def critic_plan(config: PPOConfig) -> UpdatePlan:
    """How they train the value model."""
    critic = config.critic
    return UpdatePlan(
        mini_batch=critic.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n,
        epochs=critic.ppo_epochs,
        loss_agg_mode=critic.loss_agg_mode,
        scale_length=config.data.max_response_length,
        shuffle=critic.shuffle,
        seed=config.trainer.seed if critic.data_loader_seed is None else critic.data_loader_seed,
    )
