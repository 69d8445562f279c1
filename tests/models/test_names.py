"""Weights under the names that files have: what transformers saves itself."""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from transformers import MixtralConfig, MixtralForCausalLM

from hone.models.names import as_saved
from tests.models_of_families import SHAPE, tiny


def test_experts_that_transformers_joins_come_apart_again(tmp_path):
    torch.manual_seed(0)
    model = MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=3, num_experts_per_tok=2))
    model.save_pretrained(tmp_path)
    loaded = MixtralForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    files = load_file(tmp_path / "model.safetensors")
    found = as_saved(loaded, loaded.state_dict())
    assert any(name.endswith("experts.2.w1.weight") for name in files)
    assert files.keys() <= found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in files.items())
    assert as_saved(loaded, loaded.state_dict()).keys() == found.keys()  # and nothing is used up


def test_most_models_have_the_same_names_in_memory_and_in_files():
    model = tiny("qwen2")
    assert as_saved(model, model.state_dict()).keys() == model.state_dict().keys()
