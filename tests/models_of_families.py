"""Tiny random models of several families, for tests that must hold for any of them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 64
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
# Gemma 2 soft-caps attention and logits and alternates windows; Mistral's window is shorter than the test's sequences.
FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, {"sliding_window": 6, "query_pre_attn_scalar": 8}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 6}),
}


def tiny(family: str, seed: int = 0, *, layers: int = 2) -> PreTrainedModel:
    config_class, model_class, extra = FAMILIES[family]
    torch.manual_seed(seed)
    config = config_class(**{**SHAPE, "num_hidden_layers": layers}, **extra)
    config._attn_implementation = "eager" if family == "gemma2" else "sdpa"
    return model_class(config).eval()


def random_ids(lengths: list[int], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCAB, (sum(lengths),), generator=generator)
