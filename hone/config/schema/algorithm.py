"""`algorithm`: advantages, KL in the reward, and correction of the rollout's distribution."""

from __future__ import annotations

from typing import Literal

from .actor import CustomFunction, KlKind, RolloutCorrectionKeys
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
    weight_pow: float = key(2.0, "pow: exponent of the absolute reward.", ge=0)


class FilterGroups(Node):
    """DAPO's dynamic sampling: groups that teach nothing are replaced."""

    enable: bool = key(False, "Drop groups whose metric is the same for all responses and sample more.")
    metric: str = key(
        "score",
        "What is compared within a group: score, seq_reward (with the agent's turn_rewards and the penalty on long "
        "responses) or a key that the reward function returns.",
    )
    max_num_gen_batches: int = key(10, "Most batches of prompts for one step; 0 sets no bound.", ge=0)


class RolloutCorrection(Node):
    """Another spelling of rollout_is and its kin, which they are turned into; null rests."""

    rollout_is: Literal["token", "sequence"] | None = key(None, "Weights: one per token or per sequence.")
    rollout_is_threshold: float = key(2.0, "Upper bound of the weights.", gt=0)
    rollout_rs: Literal["token", "sequence", "geometric"] | None = key(
        None, "Rejection: drop tokens, or sequences, whose ratio is outside the bounds."
    )
    rollout_rs_threshold: float | None = key(None, "Upper bound of rejection; null is rollout_is_threshold.", gt=0)
    rollout_rs_threshold_lower: float | None = key(None, "Lower bound of rejection; null is 1 / upper.", gt=0)
    rollout_token_veto_threshold: float | None = key(
        None, "Drop a trajectory with any token whose ratio is below this; null drops none.", gt=0
    )


class AlgorithmConfig(RolloutCorrectionKeys):
    """How rewards become advantages."""

    gamma: float = key(1.0, "Discount per token.", ge=0, le=1)
    lam: float = key(1.0, "GAE: trade between bias (0) and variance (1).", ge=0, le=1)
    adv_estimator: AdvEstimator = key("gae", "Advantage estimator; gae trains a critic, remax adds a greedy response.")
    norm_adv_by_std_in_grpo: bool = key(True, "GRPO: divide by the group's standard deviation.")
    use_kl_in_reward: bool = key(False, "Subtract the KL to the reference policy from the reward of each token.")
    kl_penalty: KlKind = key("kl", "Estimator of that KL; full is the exact one, over the vocabulary.")
    kl_ctrl: KlControl = node(KlControl)
    use_pf_ppo: bool = key(
        False, "Draw the trajectories of a step again by reward, with replacement, once they have their advantages."
    )
    pf_ppo: PfPpo = node(PfPpo)
    filter_groups: FilterGroups = node(FilterGroups)
    rollout_correction: RolloutCorrection = node(RolloutCorrection)
    custom_estimator: CustomFunction = node(
        CustomFunction,
        "An estimator of the user's in place of adv_estimator's: (AdvantageInputs) -> (advantages, returns). "
        "adv_estimator still says what there is to read: values of a critic (gae), greedy_rewards (remax).",
    )
