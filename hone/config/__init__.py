"""What a run is: the typed schema, presets, loading and checking."""

from .load import Loaded, load
from .problems import ConfigError, Problem
from .schema import EvaluationConfig, GenerationConfig, PPOConfig, SFTConfig

__all__ = [
    "ConfigError",
    "EvaluationConfig",
    "GenerationConfig",
    "Loaded",
    "PPOConfig",
    "Problem",
    "SFTConfig",
    "load",
]
