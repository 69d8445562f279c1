"""When the old log-probs need no pass of their own: the update's forward pass computes the very same numbers."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from hone.config.schema.ppo import PPOConfig
from hone.trainers.updates import UpdatePlan


@dataclass(frozen=True)
class OnPolicy:
    """possible: nothing between sampling and update asks for old log-probs, and the update computes no others
    (dropout would change them); critic_warmup: training steps without an update of the actor.
    """

    possible: bool
    critic_warmup: int

    @classmethod
    def of(cls, config: PPOConfig, *, stochastic: bool) -> OnPolicy:
        algorithm, loss = config.algorithm, config.actor_rollout_ref.actor.policy_loss
        needed_before = (
            algorithm.use_kl_in_reward
            or algorithm.rollout_is
            or algorithm.use_pf_ppo
            or loss.loss_mode in ("clip_cov", "kl_cov")  # they pick tokens before the update
        )
        return cls(not (needed_before or stochastic), config.trainer.critic_warmup)

    def holds(self, batch: Sized, plan: UpdatePlan, step: int) -> bool:
        """Whether this step's trajectories go into a single optimiser step."""
        single = plan.epochs == 1 and 0 < len(batch) <= plan.mini_batch
        return self.possible and single and step >= self.critic_warmup
