"""What the workers of a run need to know beside their own section of the configuration."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch

from hone.config.schema.model import OverrideConfig
from hone.models.load import ModelSource, available_attention
from hone.models.precision import DTYPES, pick_compute_dtype

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSettings:
    """device of the models, training steps for schedules, and the keys that the user set himself.

    skeleton: build models without weights, to plan a run
    """

    device: torch.device
    total_steps: int = 1
    seed: int = 0
    user_keys: frozenset[str] = field(default_factory=frozenset)
    skeleton: bool = False

    def compute_dtype(self, wanted: str, key: str, *, weights: str = "fp32", weights_key: str = "") -> torch.dtype:
        """The format to compute in; `key` is where the user would have chosen it. `weights` is theirs."""
        dtype, notice = pick_compute_dtype(
            wanted,
            self.device,
            chosen_by_user=key in self.user_keys,
            weights=DTYPES[weights],
            keys=(key, weights_key),
        )
        if notice:
            _say_once(notice)
        return dtype

    def source(
        self,
        path: str,
        override: OverrideConfig,
        *,
        model_dtype: str = "fp32",
        trust_remote_code: bool = False,
        external_lib: str | None = None,
        gradient_checkpointing: bool = False,
        packed: bool = True,
        liger: bool = False,
    ) -> ModelSource:
        return ModelSource(
            path=path,
            dtype=DTYPES[model_dtype],
            device=self.device,
            attn_implementation=available_attention(override.attn_implementation, self.device),
            config_overrides=override.hf_overrides,
            trust_remote_code=trust_remote_code,
            external_lib=external_lib,
            gradient_checkpointing=gradient_checkpointing,
            packed=packed,
            freeze_router=override.moe_config.freeze_moe_router,
            liger=liger,
            skeleton=self.skeleton,
        )


_said: set[str] = set()


def _say_once(notice: str) -> None:
    if notice not in _said:
        _said.add(notice)
        logger.warning(notice)
