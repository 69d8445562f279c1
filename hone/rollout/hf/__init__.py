"""Our own rollout engine: any transformers causal LM in torch, with continuous batching on a slot cache."""

from hone.rollout.hf.engine import HFEngine

__all__ = ["HFEngine"]
