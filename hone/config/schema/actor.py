"""`actor_rollout_ref.actor` and `.ref`: the policy's update and the reference policy's log-probs."""

from __future__ import annotations

from typing import Literal

from .base import Node, key, node, ref
from .fsdp import Contents, ForwardFsdpConfig, FsdpConfig, ProfilerConfig, Strategy
from .optim import OptimConfig

ACTOR = "actor_rollout_ref.actor"
KlKind = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full",
    "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+",
]  # fmt: skip
LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
LossMode = Literal[
    "vanilla", "gspo", "cispo", "sapo", "gpg", "geo_mean", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl", "dro"
]
IsLevel = Literal["token", "sequence", "geometric"]
IsMode = Literal["truncate", "mask", "veto", "none"]


class RolloutCorrectionKeys(Node):
    """Importance sampling against the difference between the sampler's and the trainer's probabilities."""

    rollout_is: bool = key(False, "Weigh tokens by trainer probability over sampler probability.")
    rollout_is_threshold: float | None = key(None, "Upper bound of the weights; null sets no bound.", gt=0)
    rollout_is_threshold_lower: float | None = key(None, "Lower bound of the weights; null is 1 / upper.", gt=0)
    rollout_is_level: IsLevel = key("token", "One weight per token, per sequence, or per sequence's geometric mean.")
    rollout_is_mode: IsMode = key(
        "truncate", "truncate cuts weights at the upper bound, mask drops tokens outside, veto and none set no bound."
    )
    rollout_is_weights: bool = key(
        True, "Multiply the loss by the weights; false only drops tokens (mode mask, or the veto)."
    )
    rollout_is_veto_threshold: float | None = key(
        None, "Drop a trajectory with any token whose weight is below this; null drops none.", gt=0
    )


class CustomFunction(Node):
    """A function of the user's that takes the place of a built-in one of the same signature."""

    path: str | None = key(None, "Python file that defines the function; null takes the built-in one.")
    name: str | None = key(None, "Name of the function in that file.")


class PolicyLossConfig(Node):
    """The policy loss and the numbers that only some of the losses read."""

    loss_mode: LossMode = key(
        "vanilla",
        "Policy loss; vanilla is PPO's clipped objective. clip_cov and kl_cov pick their tokens among those of a whole "
        "mini-batch, before its update.",
    )
    tau_pos: float = key(1.0, "sapo: temperature of the gate where the advantage is positive.", gt=0)
    tau_neg: float = key(1.05, "sapo: temperature of the gate elsewhere.", gt=0)
    clip_cov_ratio: float = key(0.0002, "clip_cov: share of the mini-batch's tokens whose gradient is cut.", ge=0, le=1)
    clip_cov_lb: float = key(1.0, "clip_cov: lower bound of the covariance of a cut token.")
    clip_cov_ub: float = key(5.0, "clip_cov: upper bound of the covariance of a cut token.")
    kl_cov_ratio: float = key(0.0002, "kl_cov: share of the mini-batch's tokens that get a KL penalty.", ge=0, le=1)
    ppo_kl_coef: float = key(1.0, "kl_cov: weight of that penalty; dro: its temperature tau.", ge=0)
    custom_loss: CustomFunction = node(
        CustomFunction,
        "A loss of the user's in place of loss_mode's: (PolicyLossInputs, PolicyLossParams) -> (loss per token, "
        "metrics). With loss_mode=clip_cov or kl_cov it receives their selection.",
    )


class CheckpointConfig(Node):
    """What a checkpoint of a role holds."""

    save_contents: list[Contents] = key(
        ["model", "optimizer", "extra"],
        "Parts to save: model weights, optimizer state, extra (schedule, random state), hf_model (a loadable folder).",
    )
    load_contents: list[Contents] = key(ref(f"{ACTOR}.checkpoint.save_contents"), "Parts to load on resume.")


class ActorConfig(RolloutCorrectionKeys):
    """The update of the policy."""

    strategy: Strategy = key("fsdp", "Training engine of the policy.")
    ppo_mini_batch_size: int = key(256, "PROMPTS per optimiser step, over all ranks; each brings rollout.n rows.", ge=1)
    ppo_micro_batch_size: int | None = key(None, "Deprecated: trajectories per forward pass over all ranks.", ge=1)
    ppo_micro_batch_size_per_gpu: int = key(8, "Trajectories per forward and backward pass of a rank.", ge=1)
    use_dynamic_bsz: bool = key(False, "Fill micro-batches by ppo_max_token_len_per_gpu instead of by count.")
    ppo_max_token_len_per_gpu: int = key(16384, "Most tokens in one micro-batch of a rank.", ge=1)
    grad_clip: float = key(1.0, "Largest norm of the gradient; a larger one is scaled down.", gt=0)
    clip_ratio: float = key(0.2, "Clip range of the probability ratio.", gt=0, lt=1)
    clip_ratio_low: float | None = key(None, "Clip range below 1; null is clip_ratio.", gt=0, le=1)
    clip_ratio_high: float | None = key(None, "Clip range above 1; null is clip_ratio.", gt=0)
    clip_ratio_c: float = key(3.0, "Dual clip: bound of the ratio where the advantage is negative.", gt=1)
    loss_agg_mode: LossAggMode = key("token-mean", "How token losses of a mini-batch become one number.")
    loss_scale_factor: int | None = key(
        None, "Length that seq-mean-token-sum-norm divides by; null is data.max_response_length.", ge=1
    )
    policy_loss: PolicyLossConfig = node(PolicyLossConfig)
    entropy_coeff: float = key(0.0, "Weight of the entropy bonus.", ge=0)
    entropy_checkpointing: bool = key(False, "Recompute the entropy in the backward pass to save memory.")
    entropy_from_logits_with_chunking: bool = key(False, "Compute the entropy in chunks to save memory.")
    use_prefix_grouper: bool = key(
        False, "Compute a prompt once for all its responses, in updates and log-prob passes; needs use_remove_padding."
    )
    use_kl_loss: bool = key(False, "Add the KL to the reference policy to the loss (GRPO).")
    kl_loss_coef: float = key(0.001, "Weight of that KL.", ge=0)
    kl_loss_type: KlKind = key("low_var_kl", "Estimator of that KL; a + takes the gradient of k2, full is exact.")
    use_torch_compile: bool = key(True, "Compile the log-prob and entropy computation; acts on a GPU.")
    ppo_epochs: int = key(1, "Passes over the trajectories of a step.", ge=1)
    shuffle: bool = key(False, "Shuffle trajectories between mini-batches before each pass.")
    data_loader_seed: int | None = key(None, "Seed of that shuffle.", ge=0)
    ulysses_sequence_parallel_size: int = key(1, "Ranks that share each sequence; needs packing.", ge=1)
    optim: OptimConfig = node(OptimConfig)
    fsdp_config: FsdpConfig = node(FsdpConfig)
    checkpoint: CheckpointConfig = node(CheckpointConfig)
    profiler: ProfilerConfig = node(ProfilerConfig)


class RefConfig(Node):
    """The reference policy; it exists when a KL term is on."""

    strategy: Strategy = key(ref(f"{ACTOR}.strategy"), "Engine that holds the reference policy.")
    fsdp_config: ForwardFsdpConfig = node(ForwardFsdpConfig)
    log_prob_micro_batch_size: int | None = key(None, "Deprecated: trajectories per pass over all ranks.", ge=1)
    log_prob_micro_batch_size_per_gpu: int = key(16, "Trajectories per forward pass of a rank.", ge=1)
    log_prob_use_dynamic_bsz: bool = key(ref(f"{ACTOR}.use_dynamic_bsz"), "Fill micro-batches by tokens.")
    log_prob_max_token_len_per_gpu: int = key(
        ref(f"{ACTOR}.ppo_max_token_len_per_gpu"), "Most tokens in one micro-batch of a rank.", ge=1
    )
    ulysses_sequence_parallel_size: int = key(
        ref(f"{ACTOR}.ulysses_sequence_parallel_size"), "Ranks that share each sequence; needs packing.", ge=1
    )
    profiler: ProfilerConfig = node(ProfilerConfig)
