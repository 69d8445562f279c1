"""One weight per token that turns a sum over any split of a mini-batch into the loss of the whole mini-batch.

Nothing is normalised later: engines only add up loss_weight * token_loss, so the gradient cannot depend on how the
mini-batch was cut into micro-batches, packed or dealt to ranks.
"""

import torch
from torch import Tensor

LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def loss_weights(mask: Tensor, offsets: Tensor, mode: str, *, scale_length: int | None = None) -> Tensor:
    """Weights of the token losses of one global mini-batch, fp32 [tokens], 0 under the mask.

    `mask` [tokens] marks trainable tokens, `offsets` int64 [N+1] bounds the trajectories in it; `scale_length` is the
    divisor L of seq-mean-token-sum-norm. With T trainable tokens, n_i of them in trajectory i, and N trajectories
    that have any: token-mean 1/T, token-sum 1, seq-mean-token-sum 1/N, seq-mean-token-mean 1/(N n_i),
    seq-mean-token-sum-norm 1/(N L).
    """
    if mode not in LOSS_AGG_MODES:
        raise ValueError(f"unknown loss_agg_mode {mode!r}; choose one of {', '.join(LOSS_AGG_MODES)}")
    trainable = mask.bool()
    lengths = offsets.diff()
    if int(lengths.sum()) != trainable.numel() or int(offsets[0]) != 0:
        raise ValueError(
            f"offsets run from {int(offsets[0])} to {int(offsets[-1])} but the mask has {trainable.numel()} tokens"
        )
    segment = torch.repeat_interleave(torch.arange(len(lengths), device=mask.device), lengths)
    counts = torch.bincount(segment[trainable], minlength=len(lengths))  # n_i, [N]
    per_trajectory = _trajectory_weights(counts, mode, scale_length)
    return torch.where(trainable, per_trajectory[segment], 0.0).float()


def _trajectory_weights(counts: Tensor, mode: str, scale_length: int | None) -> Tensor:
    """Weight of each trainable token of a trajectory, float64 [N]; `counts` are its trainable tokens."""
    tokens = counts.sum().clamp(min=1)
    trajectories = (counts > 0).sum().clamp(min=1)
    ones = torch.ones(len(counts), dtype=torch.float64, device=counts.device)
    if mode == "token-mean":
        return ones / tokens
    if mode == "token-sum":
        return ones
    if mode == "seq-mean-token-sum":
        return ones / trajectories
    if mode == "seq-mean-token-mean":
        return ones / (trajectories * counts.clamp(min=1))
    if scale_length is None or scale_length < 1:
        raise ValueError(
            f"seq-mean-token-sum-norm needs a divisor of at least 1, got {scale_length}; "
            "set loss_scale_factor or data.max_response_length"
        )
    return ones / (trajectories * scale_length)
