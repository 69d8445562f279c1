"""The schema: one pydantic model per section, the only place where types, ranges, defaults and meanings stand."""

from .generation import EvaluationConfig, GenerationConfig
from .ppo import PPOConfig
from .sft import SFTConfig

__all__ = ["EvaluationConfig", "GenerationConfig", "PPOConfig", "SFTConfig"]
