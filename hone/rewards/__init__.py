"""Rewards: rule scorers by data source, user functions, and the manager that gives every trajectory one score."""

from hone.rewards.manager import Reward, RewardManager
from hone.rewards.scorers import default_compute_score, register

__all__ = ["Reward", "RewardManager", "default_compute_score", "register"]
