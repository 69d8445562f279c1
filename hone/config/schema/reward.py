"""`reward_model` and `custom_reward_function`: where scores come from."""

from __future__ import annotations

from typing import Literal

from .base import Node, key, node, ref
from .fsdp import ForwardFsdpConfig, ProfilerConfig, Strategy
from .model import ScoringModelKeys


class CustomRewardFunction(Node):
    """compute_score(data_source, solution_str, ground_truth, extra_info) in a Python file of the user's."""

    path: str | None = key(None, "Python file with the reward function; null takes the built-in ones.")
    name: str = key("compute_score", "Name of the function in that file.")


class RewardFsdpConfig(ForwardFsdpConfig):
    """Sharding of the reward model."""

    min_num_params: int = key(0, "Old place of wrap_policy.min_num_params.", ge=0)


class RewardModelPathConfig(ScoringModelKeys):
    """A sequence classifier that scores responses."""

    path: str = key("~/models/Anomy-RM-v0.1", "Folder or hub name of the reward model.")
    input_tokenizer: str | None = key(
        ref("actor_rollout_ref.model.path"),
        "The policy's tokenizer, to turn ids back into text for a reward model with another template; null if equal.",
    )
    fsdp_config: RewardFsdpConfig = node(RewardFsdpConfig)


class SandboxFusion(Node):
    """A service that runs generated code."""

    url: str | None = key(None, "Address of the sandbox service.")
    max_concurrent: int = key(64, "Most requests at once.", ge=1)


class OverlongBuffer(Node):
    """DAPO's soft penalty for responses that come close to the length limit."""

    enable: bool = key(False, "Add a penalty to the score of long responses.")
    len: int = key(0, "Tokens before data.max_response_length where it starts.", ge=0)
    penalty_factor: float = key(1.0, "Penalty at the limit; before it, it grows with the length.", ge=0)


class RewardModelConfig(Node):
    """Model-based and rule-based scoring."""

    enable: bool = key(False, "Score by a reward model; false scores by the reward function alone.")
    strategy: Strategy = key(ref("actor_rollout_ref.actor.strategy"), "Engine that holds the reward model.")
    model: RewardModelPathConfig = node(RewardModelPathConfig)
    micro_batch_size_per_gpu: int = key(16, "Trajectories per forward pass of a rank.", ge=1)
    max_length: int | None = key(None, "Longest input of the reward model in tokens.", ge=1)
    use_dynamic_bsz: bool = key(ref("critic.use_dynamic_bsz"), "Fill micro-batches by tokens instead of by count.")
    forward_max_token_len_per_gpu: int = key(
        ref("critic.forward_max_token_len_per_gpu"), "Most tokens in one micro-batch of a rank.", ge=1
    )
    reward_manager: Literal["naive", "prime", "batch", "dapo"] = key(
        "naive", "How reward functions are called: naive calls one after the other, prime makes eight calls at once."
    )
    launch_reward_fn_async: bool = key(False, "Score while log-probs are computed.")
    sandbox_fusion: SandboxFusion = node(SandboxFusion)
    overlong_buffer: OverlongBuffer = node(OverlongBuffer)
    profiler: ProfilerConfig = node(ProfilerConfig)
