"""Rotary embeddings whose frequencies are chosen by the longest position of a call."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

OF_THE_LONGEST = {"dynamic", "longrope"}


def moving_rope(model: PreTrainedModel) -> str | None:
    """The name of such an embedding of the model, which must not see a part of a batch alone, nor two calls at once:
    it writes its frequencies into a buffer."""
    moving = _types(model.config.get_text_config()) & OF_THE_LONGEST
    return min(moving) if moving else None


def _types(config: Any) -> set[str]:
    """Of all layers; some families keep parameters for each type of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters, *(kind for kind in parameters.values() if isinstance(kind, dict))]
    return {kind["rope_type"] for kind in kinds if kind.get("rope_type")}
