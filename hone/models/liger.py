"""Liger's fused layers (Hsu et al. 2024): Triton kernels in the place of a model's norms, MLPs and rotary embedding."""

from __future__ import annotations

from transformers import PreTrainedModel

from hone.errors import UserError

GPU = "cuda"


def use_liger_layers(model: PreTrainedModel) -> None:
    """Changes the model in place. Its loss stays as it is: log-probs are computed from hidden states here.

    Raises UserError without a GPU, without the package, and for families that Liger does not know.
    """
    device = next(model.parameters()).device
    if device.type != GPU:
        raise UserError(
            f"use_liger: Liger's kernels are Triton programs for a GPU, and this run computes on {device.type}. "
            "Set use_liger=False; the results are the same."
        )
    try:
        from liger_kernel.transformers.monkey_patch import (
            MODEL_TYPE_TO_APPLY_LIGER_FN,
            _apply_liger_kernel_to_instance,
        )
    except ImportError as problem:
        raise UserError("use_liger needs the package liger-kernel: pip install 'hone-rl[liger]'.") from problem
    family = model.config.get_text_config().model_type
    if family not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise UserError(f"use_liger: Liger has no kernels for models of the type {family!r}. Set use_liger=False.")
    _apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=False)
