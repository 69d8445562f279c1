"""Whether a model draws random numbers while it trains."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


def is_stochastic(model: PreTrainedModel) -> bool:
    """Whether two passes in training mode differ: dropout of any kind, or noise in a router."""
    config = model.config.get_text_config().to_dict()
    noise = ("dropout", "pdrop", "layerdrop", "drop_path", "jitter")
    named = any(isinstance(v, float) and v > 0 for k, v in config.items() if any(part in k for part in noise))
    return named or any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
