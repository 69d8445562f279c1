"""Norms, rotary embeddings and gates that stand in for a model's own while it is recorded: the same numbers and
gradients, and only where they are the same."""

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as rotary_of_a_part
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from hone.models import fused
from hone.models.forward import hidden_states
from hone.models.recorded import is_recorded
from tests.models_of_families import random_ids, tiny


def gradients(function, inputs):
    """Of a weighted sum of function(*inputs), and its values."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*inputs)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(9)).to(output.dtype)
    return output.detach(), torch.autograd.grad((weights * output).sum(), inputs)


def check(ours, theirs, inputs):
    found, expected = gradients(ours, inputs), gradients(theirs, [x.double() for x in inputs])
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-5, atol=1e-5)
    for a, b in zip(found[1], expected[1], strict=True):
        assert (a.double() - b).norm() <= 1e-6 * b.norm()


@pytest.mark.parametrize("shape", [(1, 7, 16), (1, 5, 3, 8), (2, 300), (1, 1, 64)])
@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_the_norm_and_its_gradients_are_the_formulas(shape, eps):
    torch.manual_seed(0)
    x, weight = torch.randn(shape) * 3, torch.randn(shape[-1])
    check(
        lambda x, w: torch.ops.hone.rms_norm(x, w, eps),
        lambda x, w: x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w,
        (x, weight),
    )


def test_the_gate_and_its_gradients_are_the_formulas():
    torch.manual_seed(0)
    inputs = torch.randn(1, 9, 24) * 4, torch.randn(1, 9, 24)
    check(torch.ops.hone.swiglu, lambda gate, up: gate / (1 + (-gate).exp()) * up, inputs)


@pytest.mark.parametrize("head", [2, 8, 64])
def test_the_rotation_and_its_gradients_are_transformers(head):
    torch.manual_seed(0)
    q, k = (torch.randn(1, 5, heads, head) for heads in (4, 2))
    angles = torch.randn(1, 5, head)

    def rotated(rotate):
        def run(q, k):
            cos, sin = angles.to(q.dtype).cos(), angles.to(q.dtype).sin()
            return torch.cat(rotate(q.transpose(1, 2), k.transpose(1, 2), cos, sin), 1)

        return run

    check(rotated(fused.rotate), rotated(apply_rotary_pos_emb), (q, k))


@pytest.mark.parametrize("differentiable", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2", "mistral"])
def test_a_model_is_recorded_with_them(family, differentiable):
    model = tiny(family).train()
    with fused.fused(model.base_model, differentiable=differentiable):
        patched = [name for name, module in model.named_modules() if "forward" in module.__dict__]
    layers = len(model.model.layers)
    norms = 5 if family == "qwen3" else 3  # of a layer: q and k too, and the gate
    assert len(patched) == norms * layers + 1
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_what_computes_something_else_keeps_its_own_code():
    shifted = Gemma2RMSNorm(8)  # 1 + weight
    nn.init.normal_(shifted.weight)
    half = Qwen3RMSNorm(8).to(torch.bfloat16)
    model = nn.ModuleList([shifted, half, tiny("gemma2").model.layers[0].mlp, nn.Linear(2, 2)])
    with fused.fused(model, differentiable=True):
        assert not any("forward" in module.__dict__ for module in model.modules())
    assert not fused._rotates(rotary_of_a_part)
    assert fused._rotates(apply_rotary_pos_emb)


@pytest.mark.parametrize("activation", [nn.GELU(), nn.ReLU(), nn.Identity()])
@pytest.mark.parametrize("scale", [0.0, 1e-3])
def test_small_weights_do_not_hide_another_gate(activation, scale):
    mlp = tiny("qwen3").model.layers[0].mlp
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter.mul_(scale)
    assert fused._mlp_of(mlp, True) is not None
    mlp.act_fn = activation
    assert fused._mlp_of(mlp, True) is None


def test_a_weight_of_zero_does_not_hide_another_norm():
    class Centred(Qwen3RMSNorm):
        def forward(self, x):
            return super().forward(x - x.mean(-1, keepdim=True))

    for kind, known in ((Qwen3RMSNorm, True), (Centred, False)):
        norm = kind(8)
        nn.init.zeros_(norm.weight)
        with torch.no_grad():
            assert (fused._norm_of(norm, True) is not None) == known


def test_a_frozen_norm_gets_no_gradient_and_hands_the_others_on():
    found = []
    for frozen in (False, True):
        model = tiny("qwen3").train()
        model.model.layers[1].input_layernorm.weight.requires_grad_(not frozen)
        ids = random_ids([6])
        states = hidden_states(model, ids, [6], packed=True)
        assert is_recorded(model)
        states.square().sum().backward()
        assert (model.model.layers[1].input_layernorm.weight.grad is None) == frozen
        found.append(model.model.layers[0].mlp.up_proj.weight.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2"])
def test_states_are_the_same_bits_with_and_without_gradients(family):
    model, ids = tiny(family).train(), random_ids([9, 30])
    states = hidden_states(model, ids, [9, 30], packed=True)
    assert states.requires_grad and is_recorded(model)
    with torch.no_grad():
        assert torch.equal(states, hidden_states(model, ids, [9, 30], packed=True))
        assert is_recorded(model)
