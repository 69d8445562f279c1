"""How far a model's positions reach, as transformers reads its config.json."""

from __future__ import annotations

from typing import Any

import pytest

from hone.models.positions import Reach, reach_of

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 100}, 100),
        ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 100),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 2.0}}, 200),
        ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "dynamic", "factor": 3}}, 300),
        ({"max_position_embeddings": 100, "rope_parameters": YARN}, 400),
        ({"max_position_embeddings": 400, "rope_parameters": YARN}, 400),
        ({"max_position_embeddings": 1000, "rope_parameters": {**YARN, "rope_type": "llama3"}}, 1000),
        ({"max_position_embeddings": 100, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0},
                                                              "sliding_attention": {"rope_type": "default"}}}, 800),
        ({"text_config": {"max_position_embeddings": 64}, "model_type": "gemma3"}, 64),
        ({"n_positions": 50, "model_type": "gpt2"}, 50),
    ],
)  # fmt: skip
def test_scaling_counts(config: dict[str, Any], tokens: int) -> None:
    found = reach_of(config)
    assert found is not None and found.tokens == tokens


@pytest.mark.parametrize("config", [{}, {"max_position_embeddings": None}, {"max_position_embeddings": -1}])
def test_a_model_without_a_limit_has_none(config: dict[str, Any]) -> None:
    assert reach_of(config) is None


def test_a_table_of_positions_ends() -> None:
    assert reach_of({"n_positions": 50, "model_type": "gpt2"}) == Reach(50, "n_positions", fixed=True)


@pytest.mark.parametrize(("family", "name"), [("GPT2", "n_positions"), ("OPT", "max_position_embeddings")])
def test_a_model_with_a_table_fails_beyond_it_and_none_with_rotations_does(family: str, name: str) -> None:
    import torch
    import transformers

    sizes = {"GPT2": {"n_embd": 16, "n_layer": 1, "n_head": 2},
             "OPT": {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 16, "num_hidden_layers": 1,
                     "num_attention_heads": 2}}[family]  # fmt: skip
    config = getattr(transformers, f"{family}Config")(vocab_size=32, **{name: 8}, **sizes)
    model = getattr(transformers, f"{family}Model")(config).eval()
    reach = reach_of(config.to_dict())
    assert reach is not None and reach.fixed and reach.tokens == 8
    model(torch.zeros(1, reach.tokens, dtype=torch.int64))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.zeros(1, reach.tokens + 4, dtype=torch.int64))
