"""`critic`: the value model; it is trained when the advantage estimator needs values."""

from __future__ import annotations

from .actor import ACTOR, CheckpointConfig, LossAggMode
from .base import Node, key, node, ref
from .fsdp import FsdpConfig, ProfilerConfig, Strategy
from .model import TrainedModelKeys
from .optim import OptimConfig


class CriticModelConfig(TrainedModelKeys):
    """The value model: a language model with a scalar head."""

    path: str = key(ref("actor_rollout_ref.model.path"), "Folder or hub name of the model to start from.")
    tokenizer_path: str | None = key(ref("critic.model.path"), "Folder or hub name of its tokenizer.")
    fsdp_config: FsdpConfig = node(FsdpConfig)


class CriticConfig(Node):
    """The update of the value model."""

    enable: bool | None = key(None, "Train a value model; null does so when algorithm.adv_estimator needs values.")
    strategy: Strategy = key(ref(f"{ACTOR}.strategy"), "Training engine of the value model.")
    model: CriticModelConfig = node(CriticModelConfig)
    optim: OptimConfig = node(OptimConfig, lr=1e-5)
    ppo_mini_batch_size: int = key(ref(f"{ACTOR}.ppo_mini_batch_size"), "PROMPTS per optimiser step.", ge=1)
    ppo_micro_batch_size: int | None = key(None, "Deprecated: trajectories per forward pass over all ranks.", ge=1)
    ppo_micro_batch_size_per_gpu: int = key(8, "Trajectories per forward and backward pass of a rank.", ge=1)
    forward_micro_batch_size_per_gpu: int = key(
        ref("critic.ppo_micro_batch_size_per_gpu"), "Trajectories per pass when values are computed.", ge=1
    )
    use_dynamic_bsz: bool = key(ref(f"{ACTOR}.use_dynamic_bsz"), "Fill micro-batches by tokens instead of by count.")
    ppo_max_token_len_per_gpu: int = key(32768, "Most tokens in one micro-batch of a rank.", ge=1)
    forward_max_token_len_per_gpu: int = key(
        ref("critic.ppo_max_token_len_per_gpu"), "Most tokens in one micro-batch when values are computed.", ge=1
    )
    ppo_epochs: int = key(ref(f"{ACTOR}.ppo_epochs"), "Passes over the trajectories of a step.", ge=1)
    shuffle: bool = key(ref(f"{ACTOR}.shuffle"), "Shuffle trajectories between mini-batches before each pass.")
    data_loader_seed: int | None = key(ref(f"{ACTOR}.data_loader_seed"), "Seed of that shuffle.", ge=0)
    grad_clip: float = key(1.0, "Largest norm of the gradient; a larger one is scaled down.", gt=0)
    cliprange_value: float = key(0.5, "How far a value may move from its old one before it is clipped.", gt=0)
    loss_agg_mode: LossAggMode = key(ref(f"{ACTOR}.loss_agg_mode"), "How token losses become one number.")
    ulysses_sequence_parallel_size: int = key(1, "Ranks that share each sequence; needs packing.", ge=1)
    checkpoint: CheckpointConfig = node(CheckpointConfig, load_contents=ref("critic.checkpoint.save_contents"))
    profiler: ProfilerConfig = node(ProfilerConfig)
