"""The maths of RL for language models: pure functions on tensors, which know no configuration, process or file."""

from . import group_advantages as group_advantages  # noqa: PLC0414  registers its estimators
from . import token_advantages as token_advantages  # noqa: PLC0414
from .advantage_inputs import (
    ADVANTAGE_ESTIMATORS,
    AdvantageInputs,
    Estimator,
    get_estimator,
    place_rewards,
    register_estimator,
)
from .covariance_losses import clip_cov_selection, kl_cov_selection
from .full_kl import full_kl
from .importance import diagnostics, importance_weights
from .kl import KL_KINDS, AdaptiveKL, FixedKL, kl_estimate
from .loss_weights import LOSS_AGG_MODES, loss_weights
from .masking import masked_mean
from .overlong import overlong_penalty
from .pf_ppo import resample_indices
from .policy_losses import (
    POLICY_LOSSES,
    Metrics,
    PolicyLoss,
    PolicyLossInputs,
    PolicyLossParams,
    get_policy_loss,
    register_policy_loss,
)
from .value_loss import value_loss

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "KL_KINDS",
    "LOSS_AGG_MODES",
    "POLICY_LOSSES",
    "AdaptiveKL",
    "AdvantageInputs",
    "Estimator",
    "FixedKL",
    "Metrics",
    "PolicyLoss",
    "PolicyLossInputs",
    "PolicyLossParams",
    "clip_cov_selection",
    "diagnostics",
    "full_kl",
    "get_estimator",
    "get_policy_loss",
    "importance_weights",
    "kl_cov_selection",
    "kl_estimate",
    "loss_weights",
    "masked_mean",
    "overlong_penalty",
    "place_rewards",
    "register_estimator",
    "register_policy_loss",
    "resample_indices",
    "value_loss",
]
