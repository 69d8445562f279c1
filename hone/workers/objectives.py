"""What is minimised: policy, value and likelihood objectives over the trained tokens of a micro-batch.

Each sums `loss_weight * token loss`; the weights are those of the whole mini-batch, so nothing here is normalised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hone.algorithms import PolicyLoss, PolicyLossInputs, PolicyLossParams, get_policy_loss, kl_estimate, value_loss
from hone.training.objective import Loss, TokenView


@dataclass(frozen=True)
class PolicyObjective:
    """Policy loss - entropy_coeff * entropy + kl_coef * KL(policy, reference), all with the same weights.

    Columns: loss_weight, advantages, old_logprobs (without them the policy is its own old one: a ratio of 1);
    ref_logprobs for a KL that is estimated (the engine gives the exact one); importance_weights and selection if
    present.
    """

    loss_mode: str
    params: PolicyLossParams
    entropy_coeff: float = 0.0
    kl_kind: str | None = None
    kl_coef: float = 0.0
    custom_loss: PolicyLoss | None = None  # in place of loss_mode's

    @property
    def want(self) -> frozenset[str]:
        extra = {"entropy"} if self.entropy_coeff else set()
        return frozenset({"logprobs"} | extra | ({"full_kl"} if self.kl_kind == "full" else set()))

    def __call__(self, outputs: dict[str, Tensor], batch: TokenView) -> Loss:
        weight, logprobs = batch["loss_weight"], outputs["logprobs"]
        inputs = PolicyLossInputs(
            logprobs=logprobs,
            old_logprobs=batch.columns.get("old_logprobs", logprobs.detach()),
            advantages=batch["advantages"],
            mask=torch.ones_like(logprobs, dtype=torch.bool),
            segment_ids=batch.segment_ids,
            selection=batch.columns.get("selection"),
        )
        policy_loss = self.custom_loss or get_policy_loss(self.loss_mode)
        token_loss, metrics = policy_loss(inputs, self.params)
        if "importance_weights" in batch:
            token_loss = token_loss * batch["importance_weights"]
        total = (weight * token_loss).sum()
        sums = {"pg_loss": total.detach()}
        if self.entropy_coeff:
            entropy = (weight * outputs["entropy"]).sum()
            total = total - self.entropy_coeff * entropy
            sums["entropy_loss"] = entropy.detach()
        if self.kl_kind is not None:
            kl = (weight * self._kl(outputs, batch)).sum()
            total = total + self.kl_coef * kl
            sums["kl_loss"] = kl.detach()
        return Loss(total, sums, metrics)

    def _kl(self, outputs: dict[str, Tensor], batch: TokenView) -> Tensor:
        if self.kl_kind == "full":
            return outputs["full_kl"]
        return kl_estimate(outputs["logprobs"], batch["ref_logprobs"], str(self.kl_kind))


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
