"""A recorded forward pass gives the model's own numbers, whatever happens to the model, or is not taken at all."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hone.errors import UserError
from hone.models import forward, recorded, scripted
from hone.models.attention import PackedLayout
from hone.models.forward import hidden_states
from hone.models.load import enable_checkpointing
from hone.models.lora import LoraSettings, attach
from hone.rollout.interface import Sampling
from tests.models.test_expert_routers import mixtral, qwen3_moe
from tests.models_of_families import FAMILIES, SHAPE, random_ids, tiny
from tests.rollout.test_hf_engine import generate, make_engine

LENGTHS = [5, 14, 3, 9]
INDEX = torch.tensor([3, 9, 9, 20, 12, 29, 30])


@pytest.fixture
def own_code(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    """The hidden states as the model's own code computes them."""

    def states(*arguments: object, **options: object) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(forward, "recorded_states", lambda *_: None)
            return hidden_states(*arguments, **options)

    return states


def is_recorded(model: PreTrainedModel) -> bool:
    hidden_states(model, random_ids([3]), [3], packed=True)
    return recorded.is_recorded(model)


def with_gradient(states: Tensor, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    model.zero_grad()
    (states * torch.arange(states.numel()).view_as(states).cos()).sum().backward()
    return states.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("lengths", [LENGTHS, [1], [40, 2]], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_gradients_are_the_models(family: str, lengths: list[int], own_code: Callable[..., Tensor]) -> None:
    model, ids = tiny(family).train(), random_ids(lengths)
    assert is_recorded(model)
    for index in (None, torch.tensor([sum(lengths) - 1, 0])):
        expected, gradient = with_gradient(own_code(model, ids, lengths, index, packed=True), model)
        found, found_gradient = with_gradient(hidden_states(model, ids, lengths, index, packed=True), model)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(found_gradient, gradient, rtol=1e-4, atol=5e-5)


def step(model: PreTrainedModel) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)


def other_weights(model: PreTrainedModel) -> None:
    model.load_state_dict(tiny("qwen2", seed=1).state_dict(), assign=True)


def other_data(model: PreTrainedModel) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.2


def other_norm(model: PreTrainedModel) -> None:
    model.model.norm = nn.Identity()


def one_layer_less(model: PreTrainedModel) -> None:
    del model.model.layers[0]
    model.config.num_hidden_layers = 1
    model.model.layers[0].self_attn.layer_idx = 0


def a_hook(model: PreTrainedModel) -> None:
    model.model.layers[0].register_forward_hook(lambda module, args, output: output * 2)


def another_hook(model: PreTrainedModel) -> None:
    layer = model.model.layers[0]
    layer._forward_hooks.clear()
    a_hook(model)


def an_attribute(model: PreTrainedModel) -> None:
    model.model.layers[0].self_attn.scaling = 2.0


def another_forward(model: PreTrainedModel) -> None:
    model.model.norm.forward = lambda states: states * 3


def another_format(model: PreTrainedModel) -> None:
    model.to(torch.bfloat16)


CHANGES = [step, other_weights, other_data, other_norm, one_layer_less, a_hook, an_attribute, another_forward]
CHANGES += [another_hook, another_format]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_in_a_model_after_it_was_recorded_counts(
    change: Callable[[PreTrainedModel], None], own_code: Callable[..., Tensor]
) -> None:
    model, ids = tiny("qwen2"), random_ids(LENGTHS)
    if change is another_hook:
        model.model.layers[0].register_forward_hook(lambda module, args, output: output * 1)
    before = hidden_states(model, ids, LENGTHS, packed=True)
    change(model)
    after = hidden_states(model, ids, LENGTHS, packed=True)
    torch.testing.assert_close(after, own_code(model, ids, LENGTHS, packed=True))
    assert (after - before).abs().max() > 0.01


def test_a_model_that_changes_on_and_on_is_left_alone(own_code: Callable[..., Tensor]) -> None:
    model, ids = tiny("qwen2"), random_ids(LENGTHS)
    for seed in range(recorded.MOST + 2):
        assert is_recorded(model) == (seed < recorded.MOST)
        found = hidden_states(model, ids, LENGTHS, packed=True)
        torch.testing.assert_close(found, own_code(model, ids, LENGTHS, packed=True))
        model.load_state_dict(tiny("qwen2", seed=seed).state_dict(), assign=True)


def test_a_copy_has_weights_of_its_own(own_code: Callable[..., Tensor]) -> None:
    model, ids = tiny("llama"), random_ids(LENGTHS)
    before = hidden_states(model, ids, LENGTHS, packed=True)
    other = copy.deepcopy(model)
    step(other)
    torch.testing.assert_close(
        hidden_states(other, ids, LENGTHS, packed=True), own_code(other, ids, LENGTHS, packed=True)
    )
    torch.testing.assert_close(hidden_states(model, ids, LENGTHS, packed=True), before)


def test_a_model_can_be_pickled_and_is_let_go_like_any_other() -> None:
    model = tiny("llama")
    assert is_recorded(model)
    assert not recorded.is_recorded(pickle.loads(pickle.dumps(model)))
    weight = weakref.ref(model.model.embed_tokens.weight)
    del model
    gc.collect()
    assert weight() is None


class Failing:
    def __init__(self, problem: BaseException) -> None:
        self.problem, self.position_ids = problem, torch.arange(3)[None]

    def attend(self, *arguments: object, **options: object) -> Tensor:
        raise self.problem


@pytest.mark.parametrize("problem", [UserError("told"), KeyboardInterrupt(), SystemExit(3), RuntimeError("broken")])
def test_what_attention_raises_stays_what_it_is(problem: BaseException) -> None:
    model, ids = tiny("llama"), random_ids([3])
    before = hidden_states(model, ids, [3], packed=True)
    with pytest.raises(type(problem)) as caught:
        forward.run_layout(model, ids, Failing(problem))
    assert caught.value is problem
    torch.testing.assert_close(hidden_states(model, ids, [3], packed=True), before)


def test_a_layout_is_let_go_after_its_call() -> None:
    model, ids = tiny("llama"), random_ids([3])
    hidden_states(model, ids, [3], packed=True)
    layout = PackedLayout([3])
    forward.run_layout(model, ids, layout)
    kept = weakref.ref(layout)
    del layout
    gc.collect()
    assert kept() is None


def test_threads_that_record_and_script_at_once_leave_warnings_as_they_were() -> None:
    filters = list(warnings.filters)
    scripted._SCRIPTED.clear()
    requests = [(random_ids([4 + n % 3], seed=n).tolist(), Sampling(max_tokens=3, seed=n)) for n in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: generate(make_engine(tiny("qwen3", seed=n % 2)), requests), range(4)))
    assert warnings.filters == filters


def test_hooks_for_all_modules_see_them() -> None:
    model, seen = tiny("llama"), []
    hidden_states(model, random_ids([3]), [3], packed=True)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: seen.append(module))
    try:
        hidden_states(model, random_ids([3]), [3], packed=True)
    finally:
        handle.remove()
    assert model.model.norm in seen


def test_threads_have_their_own_layouts(own_code: Callable[..., Tensor]) -> None:
    model = tiny("qwen3")
    work = [([5, n, 2], random_ids([5, n, 2], seed=n)) for n in range(1, 25)]

    def run(item: tuple[list[int], Tensor]) -> Tensor:
        return hidden_states(model, item[1], item[0], packed=True).detach()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, work))
    for states, (lengths, ids) in zip(found, work, strict=True):
        torch.testing.assert_close(states, own_code(model, ids, lengths, packed=True).detach())


class ValueNorm(nn.LayerNorm):
    """What it computes depends on the numbers."""

    __module__ = "torch.nn.of_a_test"

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x * 0.5


class SizeNorm(nn.LayerNorm):
    """What it computes depends on the number of tokens in a way that a recording does not see."""

    __module__ = "torch.nn.of_a_test"

    def forward(self, x: Tensor) -> Tensor:
        return x / len(x[0].tolist())


class OwnNorm(nn.LayerNorm):
    """Code of others, which may do anything."""


@pytest.mark.parametrize("norm", [ValueNorm, SizeNorm, OwnNorm])
def test_a_model_with_code_that_may_do_anything_runs_as_it_is(
    norm: type[nn.LayerNorm], own_code: Callable[..., Tensor]
) -> None:
    model, ids = tiny("llama"), random_ids(LENGTHS)
    model.model.norm = norm(SHAPE["hidden_size"])
    assert not is_recorded(model)
    found = hidden_states(model, ids, LENGTHS, packed=True)
    torch.testing.assert_close(found, own_code(model, ids, LENGTHS, packed=True))


def with_dropout() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, attention_dropout=0.1)).eval()


def with_adapter() -> PreTrainedModel:
    model = tiny("llama")
    attach(model, LoraSettings(rank=2, alpha=4, targets="all-linear"))
    return model


def with_moving_rope() -> PreTrainedModel:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    return LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=rope)).eval()


def sharded() -> PreTrainedModel:
    model = tiny("llama")
    recorded.never_record(model)
    return model


def with_backward_hook() -> PreTrainedModel:
    model = tiny("llama")
    model.model.layers[0].register_full_backward_hook(lambda module, inputs, outputs: None)
    return model


def with_hook() -> PreTrainedModel:
    model = tiny("llama")
    a_hook(model)
    return model


OTHERS = [qwen3_moe, mixtral, with_dropout, with_adapter, with_moving_rope, sharded, with_backward_hook, with_hook]


@pytest.mark.parametrize("build", OTHERS)
def test_what_may_depend_on_more_than_shapes_is_never_recorded(build: Callable[[], PreTrainedModel]) -> None:
    assert not is_recorded(build())


def test_layers_that_are_computed_again_and_other_formats_run_as_they_are() -> None:
    model = tiny("llama").train()
    enable_checkpointing(model)
    assert not is_recorded(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_recorded(tiny("llama"))
