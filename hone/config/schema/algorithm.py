"""`algorithm`: advantages, KL in the reward, and correction of the rollout's distribution."""

from __future__ import annotations

from typing import Literal

from .actor import KlKind, RolloutCorrectionKeys
from .base import Node, key, node

AdvEstimator = Literal[
    "gae", "grpo", "grpo_passk", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline",
    "remax", "opo", "gpg", "reward", "none",
]  # fmt: skip


class KlControl(Node):
    """The coefficient of the KL in the reward."""

    type: Literal["fixed", "adaptive"] = key("fixed", "Whether the coefficient moves towards target_kl.")
    kl_coef: float = key(0.005, "Coefficient at the start.", ge=0)
    horizon: int = key(10000, "adaptive: trajectories over which the coefficient adapts.", ge=1)
    target_kl: float = key(0.1, "adaptive: KL to aim at.", gt=0)


class PfPpo(Node):
    """Policy-filtration PPO: trajectories are drawn again by reward."""

    reweight_method: Literal["pow", "max_min", "max_random"] = key("pow", "How rewards become drawing weights.")
    weight_pow: float = key(2.0, "pow: exponent of the absolute reward.")


class FilterGroups(Node):
    """DAPO's dynamic sampling: groups that teach nothing are replaced."""

    enable: bool = key(False, "Drop groups whose metric is the same for all responses and sample more.")
    metric: str = key("score", "What is compared within a group.")
    max_num_gen_batches: int = key(10, "Most batches generated for one step; 0 sets no bound.", ge=0)


class CustomEstimator(Node):
    """An advantage estimator of the user's."""

    path: str | None = key(None, "Python file that defines the estimator; null takes adv_estimator.")
    name: str | None = key(None, "Name of the function in that file.")


class AlgorithmConfig(RolloutCorrectionKeys):
    """How rewards become advantages."""

    gamma: float = key(1.0, "Discount per token.", ge=0, le=1)
    lam: float = key(1.0, "GAE: trade between bias (0) and variance (1).", ge=0, le=1)
    adv_estimator: AdvEstimator = key("gae", "Advantage estimator; gae trains a critic.")
    norm_adv_by_std_in_grpo: bool = key(True, "GRPO: divide by the group's standard deviation.")
    use_kl_in_reward: bool = key(False, "Subtract the KL to the reference policy from the reward of each token.")
    kl_penalty: KlKind = key("kl", "Estimator of that KL.")
    kl_ctrl: KlControl = node(KlControl)
    use_pf_ppo: bool = key(False, "Draw trajectories again by reward before the update.")
    pf_ppo: PfPpo = node(PfPpo)
    filter_groups: FilterGroups = node(FilterGroups)
    custom_estimator: CustomEstimator = node(CustomEstimator)
