"""The routers of mixture-of-experts models: the layers that choose a token's experts."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel

from hone.errors import UserError

NAMES = ("gate", "router")


def routers(model: PreTrainedModel) -> Iterator[nn.Module]:
    """They stand beside the experts, under one of two names."""
    for module in model.modules():
        if isinstance(getattr(module, "experts", None), nn.Module):
            yield from (child for name, child in module.named_children() if name in NAMES)


def freeze_routers(model: PreTrainedModel) -> None:
    """No gradient reaches them. Raises UserError when the model has none."""
    found = list(routers(model))
    if not found:
        raise UserError(
            f"override_config.moe_config.freeze_moe_router: {type(model).__name__} has no router of experts; "
            "set it to False"
        )
    for router in found:
        router.requires_grad_(False)
