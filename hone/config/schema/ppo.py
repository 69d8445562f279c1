"""The root of an RL run's configuration."""

from __future__ import annotations

from .actor import ActorConfig, RefConfig
from .algorithm import AlgorithmConfig
from .base import Node, key, node
from .critic import CriticConfig
from .data import DataConfig
from .model import ActorModelConfig
from .reward import CustomRewardFunction, RewardModelConfig
from .rollout import RolloutConfig
from .trainer import RayInitConfig, TrainerConfig


class ActorRolloutRefConfig(Node):
    """The policy: trained by the actor, sampled by the rollout, compared with the reference."""

    hybrid_engine: bool = key(True, "Actor and rollout share their devices.")
    model: ActorModelConfig = node(ActorModelConfig)
    actor: ActorConfig = node(ActorConfig)
    ref: RefConfig = node(RefConfig)
    rollout: RolloutConfig = node(RolloutConfig)


class PPOConfig(Node):
    """An RL run: PPO, GRPO and their relatives."""

    data: DataConfig = node(DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = node(ActorRolloutRefConfig)
    critic: CriticConfig = node(CriticConfig)
    reward_model: RewardModelConfig = node(RewardModelConfig)
    custom_reward_function: CustomRewardFunction = node(CustomRewardFunction)
    algorithm: AlgorithmConfig = node(AlgorithmConfig)
    trainer: TrainerConfig = node(TrainerConfig)
    ray_init: RayInitConfig = node(RayInitConfig)

    @property
    def trains_critic(self) -> bool:
        """Whether the run has a value model."""
        enable = self.critic.enable
        return self.algorithm.adv_estimator == "gae" if enable is None else enable

    @property
    def needs_reference(self) -> bool:
        """Whether the run has a reference policy."""
        return self.actor_rollout_ref.actor.use_kl_loss or self.algorithm.use_kl_in_reward

    @property
    def needs_ref_logprobs(self) -> bool:
        """Whether a KL is estimated from the reference's log-probs; the exact one reads its distributions instead."""
        actor, algorithm = self.actor_rollout_ref.actor, self.algorithm
        in_loss = actor.use_kl_loss and actor.kl_loss_type != "full"
        return in_loss or (algorithm.use_kl_in_reward and algorithm.kl_penalty != "full")

    @property
    def ranks(self) -> int:
        return self.trainer.nnodes * self.trainer.n_gpus_per_node
