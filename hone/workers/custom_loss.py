"""A policy loss from a file of the user's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hone.algorithms import Metrics, PolicyLoss, PolicyLossInputs, PolicyLossParams
from hone.config.schema.actor import ActorConfig
from hone.errors import UserError
from hone.user_code import load_function, shapes


def custom_loss(actor: ActorConfig) -> PolicyLoss | None:
    """The user's own loss, held to what a loss returns; None when there is none."""
    chosen = actor.policy_loss.custom_loss
    if chosen.path is None or chosen.name is None:
        return None
    section = "actor_rollout_ref.actor.policy_loss.custom_loss"
    loss = load_function(chosen.path, chosen.name, section=section)

    def checked(inputs: PolicyLossInputs, params: PolicyLossParams) -> tuple[Tensor, Metrics]:
        result = loss(inputs, params)
        if not _is_token_loss(result, inputs.mask.shape):
            raise UserError(
                f"{section}.name={chosen.name} returned {shapes(result)}: expected (loss, metrics), a tensor of "
                f"{tuple(inputs.mask.shape)} token losses and a dict of tensors of that shape"
            )
        token_loss, metrics = result
        return token_loss, {name: values.detach() for name, values in metrics.items()}

    return checked


def _is_token_loss(result: Any, shape: torch.Size) -> bool:
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        return False
    return all(isinstance(values, Tensor) and values.shape == shape for values in (result[0], *result[1].values()))
