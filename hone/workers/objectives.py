"""What is minimised: policy, value and likelihood objectives over the trained tokens of a micro-batch.

Each sums `loss_weight * token loss`; the weights are those of the whole mini-batch, so nothing here is normalised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hone.algorithms import PolicyLossInputs, PolicyLossParams, get_policy_loss, kl_estimate, value_loss
from hone.training.engine import Loss, TokenView


@dataclass(frozen=True)
class PolicyObjective:
    """Policy loss - entropy_coeff * entropy + kl_coef * KL(policy, reference), all with the same weights.

    Columns: loss_weight, old_logprobs, advantages; ref_logprobs when kl_kind is set; importance_weights if present.
    """

    loss_mode: str
    params: PolicyLossParams
    entropy_coeff: float = 0.0
    kl_kind: str | None = None
    kl_coef: float = 0.0

    @property
    def want(self) -> frozenset[str]:
        return frozenset({"logprobs", "entropy"} if self.entropy_coeff else {"logprobs"})

    def __call__(self, outputs: dict[str, Tensor], batch: TokenView) -> Loss:
        weight, logprobs = batch["loss_weight"], outputs["logprobs"]
        inputs = PolicyLossInputs(
            logprobs=logprobs,
            old_logprobs=batch["old_logprobs"],
            advantages=batch["advantages"],
            mask=torch.ones_like(logprobs, dtype=torch.bool),
            segment_ids=batch.segment_ids,
        )
        token_loss, metrics = get_policy_loss(self.loss_mode)(inputs, self.params)
        if "importance_weights" in batch:
            token_loss = token_loss * batch["importance_weights"]
        policy_loss = (weight * token_loss).sum()
        total, sums = policy_loss, {"pg_loss": policy_loss.detach()}
        if self.entropy_coeff:
            entropy = (weight * outputs["entropy"]).sum()
            total = total - self.entropy_coeff * entropy
            sums["entropy_loss"] = entropy.detach()
        if self.kl_kind is not None:
            kl = (weight * kl_estimate(logprobs, batch["ref_logprobs"], self.kl_kind)).sum()
            total = total + self.kl_coef * kl
            sums["kl_loss"] = kl.detach()
        return Loss(total, sums, metrics)


@dataclass(frozen=True)
class ValueObjective:
    """The clipped value loss. Columns: loss_weight, values (before the update), returns."""

    cliprange: float
    want: frozenset[str] = frozenset({"values"})

    def __call__(self, outputs: dict[str, Tensor], batch: TokenView) -> Loss:
        predicted = outputs["values"]
        everywhere = torch.ones_like(predicted, dtype=torch.bool)
        token_loss, clipped = value_loss(predicted, batch["values"], batch["returns"], everywhere, self.cliprange)
        loss = (batch["loss_weight"] * token_loss).sum()
        means = {"vf_clipfrac": clipped.float(), "vpred_mean": predicted.detach()}
        return Loss(loss, {"vf_loss": loss.detach()}, means)


@dataclass(frozen=True)
class LikelihoodObjective:
    """Cross-entropy of the demonstrated tokens. Column: loss_weight."""

    want: frozenset[str] = frozenset({"logprobs"})

    def __call__(self, outputs: dict[str, Tensor], batch: TokenView) -> Loss:
        loss = -(batch["loss_weight"] * outputs["logprobs"]).sum()
        return Loss(loss, {"loss": loss.detach()})
