"""Names of weights: transformers joins or renames some when it loads a model, such as the experts of a layer."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion


def as_saved(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's weights under the names, and in the shapes, that its files have: what every other program reads."""
    saved: dict[str, Tensor] = revert_weight_conversion(model, dict(weights))
    return saved
