"""Advantages by name: importing this module registers all estimators of the package."""

from . import group_advantages, token_advantages
from .advantage_inputs import (
    ADVANTAGE_ESTIMATORS,
    AdvantageInputs,
    Estimator,
    get_estimator,
    place_rewards,
    register_estimator,
)

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "AdvantageInputs",
    "Estimator",
    "get_estimator",
    "group_advantages",
    "place_rewards",
    "register_estimator",
    "token_advantages",
]
