"""Rewards: rule scorers by data source, user functions, and the manager that gives every trajectory one score."""

from hone.rewards.manager import RewardManager
from hone.rewards.reward import Reward, refuse_if_all_raised
from hone.rewards.scorers import default_compute_score, register

__all__ = ["Reward", "RewardManager", "default_compute_score", "refuse_if_all_raised", "register"]
