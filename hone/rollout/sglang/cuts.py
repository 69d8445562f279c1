"""top_k, top_p and min_p as SGLang's logit processor, which runs in SGLang's own process.

SGLang's own cuts are made after it has noted the log-probs, which are then not those of the distribution that a token
is drawn from. Here they are made before, by the function that hone's own engine uses.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from torch import Tensor

from hone.rollout.hf.sampling import RowSampling, truncate
from hone.rollout.interface import Sampling

NAMES = ("temperature", "top_k", "top_p", "min_p")


class Cuts(CustomLogitProcessor):
    """-inf for the logits of tokens that are cut off."""

    def __call__(self, logits: Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> Tensor:
        """logits [rows, V], not yet divided by the temperature, and the parameters of each row."""
        rows = RowSampling.of([_sampling(row) for row in custom_param_list or []], logits.device)
        kept = truncate(logits.float() / rows.temperature[:, None], rows)
        return logits.masked_fill(kept.isneginf(), -torch.inf)


def cut(sampling: Sampling) -> bool:
    """Whether anything is cut off. At temperature 0 the likeliest token remains."""
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)


def parameters(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in NAMES}


def _sampling(row: dict[str, Any]) -> Sampling:
    return Sampling(max_tokens=1, **{name: row[name] for name in NAMES})
