"""Liger's kernels need a GPU: here a stand-in takes the place of the package, and of the device."""

import sys
from types import ModuleType

import pytest
import torch

from hone.errors import UserError
from hone.models import liger
from hone.models.load import ModelSource, load_causal_lm
from tests.models_of_families import tiny
from tests.shows import shows


class OnGpu:
    """What the adapter asks of a model."""

    def __init__(self, family="qwen3"):
        self.config = tiny(family).config

    def parameters(self):
        return iter([torch.empty(1, device="meta")])


@pytest.fixture
def package(monkeypatch):
    """The package with the one function that hone calls; returns what it was called with."""
    calls = []
    module = ModuleType("liger_kernel.transformers.monkey_patch")
    module.MODEL_TYPE_TO_APPLY_LIGER_FN = {"qwen3": None}
    module._apply_liger_kernel_to_instance = lambda **arguments: calls.append(arguments)
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(liger, "GPU", "meta")
    return calls


@shows("actor_rollout_ref.model.use_liger")
@shows("model.use_liger", command="sft")
def test_the_layers_are_replaced_and_the_loss_is_not(package):
    model = OnGpu()
    liger.use_liger_layers(model)
    assert package == [{"model": model, "fused_linear_cross_entropy": False}]


def test_a_family_that_liger_does_not_know_is_refused(package):
    with pytest.raises(UserError, match="no kernels for models of the type 'gemma2'"):
        liger.use_liger_layers(OnGpu("gemma2"))


def test_a_missing_package_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(liger, "GPU", "meta")
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(UserError, match=r"hone-rl\[liger\]"):
        liger.use_liger_layers(OnGpu())


def test_a_cpu_is_refused_when_the_model_is_loaded(tmp_path):
    tiny("qwen3").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="this run computes on cpu"):
        load_causal_lm(ModelSource(str(tmp_path), liger=True))
