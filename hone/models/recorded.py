"""A model's forward pass as a recorded graph of operations, which runs without Python between them.

On a CPU a small model spends as long in Python as in its operations, and pieces of work in threads side by side wait
for Python's lock after every one of them. TorchScript's interpreter needs no lock. Attention is one operation of the
graph, which asks the layout of the call: one recording serves updates, scoring and generation.

What may depend on more than shapes (experts, dropout, adapters, shards, frequencies of the longest position, code of
others) is not recorded and runs as ever. A recording is compared with the model itself on other tokens, and used for as
long as every module holds what it held.
"""

from __future__ import annotations

import logging
import operator
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules
from transformers import PreTrainedModel

from hone.models.attention import Layout, PackedLayout, layout_attention
from hone.models.fused import fused
from hone.models.randomness import is_stochastic
from hone.models.rope import moving_rope
from hone.models.scripted import COMPILING, as_written, plain

logger = logging.getLogger(__name__)
SOURCES = ("torch.nn.", "transformers.models.", "transformers.activations")
TOLERANCE = 1e-4
MOST = 5  # recordings of one model with gradients, and without: torch never forgets the types of one

Graph = Callable[..., Tensor]


class _Call(threading.local):
    """What the graph that a thread runs calls back to, and what that raised: the interpreter makes a RuntimeError of
    every exception, an interrupt by the user included."""

    layout: Layout | None = None
    problem: BaseException | None = None


_CALL = _Call()
_LIBRARY = torch.library.Library("hone", "DEF")
_LIBRARY.define("attend(Tensor q, Tensor k, Tensor v, int layer, float scale, int? window, float? softcap) -> Tensor")


def _attend(
    q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    assert _CALL.layout is not None
    try:
        return _CALL.layout.attend(layer, q, k, v, scale=scale, window=window, softcap=softcap)
    except BaseException as problem:
        _CALL.problem = problem
        raise


_LIBRARY.impl("attend", _attend, "CompositeImplicitAutograd")


@contextmanager
def _calling(layout: Layout) -> Iterator[None]:
    before, _CALL.layout = _CALL.layout, layout
    try:
        yield
    except RuntimeError:
        if _CALL.problem is not None:
            raise _CALL.problem from None
        raise
    finally:
        _CALL.layout, _CALL.problem = before, None


class _AnyLayout:
    """The layout that the model is given while it is recorded."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        return torch.ops.hone.attend(q, k, v, layer, float(scale), window, softcap)


def own_states(base: Any, input_ids: Tensor, position_ids: Tensor, layout: Any, read: Tensor | None) -> Tensor:
    """Last hidden states [1, tokens, H] of input_ids [1, tokens], as the model's own code computes them."""
    output = base(input_ids=input_ids, position_ids=position_ids, use_cache=False, layout=layout, read_tokens=read)
    return output.last_hidden_state


class _Body(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.training = base, base.training

    def forward(self, input_ids: Tensor, position_ids: Tensor, read: Tensor | None = None) -> Tensor:
        return own_states(self.base, input_ids, position_ids, _AnyLayout(), read)


class _Snapshot:
    """What a module held when the model was recorded."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.held = ref(module), _held(module)

    @property
    def unchanged(self) -> bool:
        module = self.module()
        now = [] if module is None else _held(module)
        return len(now) == len(self.held) and all(map(operator.is_, now, self.held))


_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)


def _held(module: nn.Module) -> list[Any]:
    """Parameters and their formats, buffers, hooks, attributes, and of parts (which hold the rest) their numbers."""
    parameters = module._parameters.values()
    formats = [None if p is None else p.dtype for p in parameters]
    own = [value for name, value in module.__dict__.items() if name not in _OF_EVERY_MODULE]
    parts = [_number(part) for part in module._modules.values()]
    return [*parameters, *formats, *module._buffers.values(), *_hooks(module), *own, *parts]


_NUMBERS: WeakKeyDictionary[nn.Module, object] = WeakKeyDictionary()


def _number(module: nn.Module | None) -> object:
    """Stands for a module without keeping it alive."""
    return None if module is None else _NUMBERS.setdefault(module, object())


def _hooks(module: nn.Module) -> list[Any]:
    kinds = module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks
    return [hook for hooks in kinds for hook in hooks.values()]


@dataclass(frozen=True)
class _Recording:
    """graphs: of all tokens, and of those that are read; None: the model cannot be recorded
    checkpointed: whether its layers are computed again in the backward pass, once it trains
    """

    snapshots: list[_Snapshot]
    graphs: tuple[Graph, Graph] | None
    checkpointed: bool
    number: int  # of the model's recordings so far

    @property
    def current(self) -> bool:
        return all(snapshot.unchanged for snapshot in self.snapshots)


_Recordings = WeakKeyDictionary[nn.Module, _Recording]
_LOOKING: _Recordings = WeakKeyDictionary()
_TRAINING: _Recordings = WeakKeyDictionary()  # with norms and gates whose gradients cost less (`fused`)
_NEVER: WeakSet[nn.Module] = WeakSet()


def never_record(model: PreTrainedModel) -> None:
    """For a model whose parameters come and go, as those that are sharded do."""
    _NEVER.add(model.base_model)


def is_recorded(model: PreTrainedModel) -> bool:
    """Whether the model last ran as a recorded graph, with or without gradients as they are on now."""
    recording = _recordings().get(model.base_model)
    return recording is not None and recording.graphs is not None


def _recordings() -> _Recordings:
    return _TRAINING if torch.is_grad_enabled() else _LOOKING


def recorded_states(model: PreTrainedModel, input_ids: Tensor, layout: Layout, read: Tensor | None) -> Tensor | None:
    """`own_states` by the recorded graph; None where the model's own code has to run.

    read: the tokens whose states somebody asks for (`prune_last_layer`); None: all of them
    """
    recording = _recording(model) if _may_replay(model) else None
    if recording is None or recording.graphs is None or (model.training and recording.checkpointed):
        return None
    return _replay(recording.graphs, input_ids, layout, read)


def _replay(graphs: tuple[Graph, Graph], input_ids: Tensor, layout: Layout, read: Tensor | None) -> Tensor:
    with _calling(layout), as_written():
        if read is None:
            return graphs[0](input_ids, layout.position_ids)
        return graphs[1](input_ids, layout.position_ids, read)


def _may_replay(model: PreTrainedModel) -> bool:
    """Whether this call may take a recorded graph."""
    return (
        model.device.type == "cpu"
        and model.base_model not in _NEVER
        and not torch.is_autocast_enabled("cpu")
        and not (all_modules._has_any_global_hook() or torch.jit.is_tracing())
        and plain()
    )


def _recording(model: PreTrainedModel) -> _Recording:
    recordings = _recordings()
    recording = recordings.get(model.base_model)
    if recording is not None and recording.current:
        return recording
    with COMPILING:
        recording = recordings.get(model.base_model)  # another thread's, by now
        if recording is None or not recording.current:
            recording = recordings[model.base_model] = _record(model, 1 if recording is None else recording.number + 1)
        return recording


def _record(model: PreTrainedModel, number: int) -> _Recording:
    modules = list(model.base_model.modules())
    checkpointed = any(getattr(module, "gradient_checkpointing", False) for module in modules)
    graphs = _graphs(model) if number <= MOST and _can_be_recorded(model, modules) else None
    return _Recording([_Snapshot(module) for module in modules], graphs, checkpointed, number)


def _can_be_recorded(model: PreTrainedModel, modules: list[nn.Module]) -> bool:
    hooks = [hook for module in modules for hook in _hooks(module)]
    return (
        all(type(module).__module__.startswith(SOURCES) and "forward" not in module.__dict__ for module in modules)
        and all(hook.__module__ == "hone.models.last_layer" for hook in hooks)
        and not any(module._compiled_call_impl or hasattr(module, "experts") for module in modules)
        and not is_stochastic(model)
        and moving_rope(model) is None
    )


def _graphs(model: PreTrainedModel) -> tuple[Graph, Graph] | None:
    differentiable = torch.is_grad_enabled()
    try:
        with torch.no_grad():
            with fused(model.base_model, differentiable=differentiable):
                graphs = _traced(model)
            return graphs if _right(model, graphs) else None
    except Exception as problem:
        logger.debug("%s runs as it is, since it cannot be recorded: %s", type(model).__name__, problem)
        return None


def _traced(model: PreTrainedModel) -> tuple[Graph, Graph]:
    body, tokens = _Body(model.base_model), _Tokens([3, 2], read=[0, 4])
    inputs = tokens.ids, tokens.layout.position_ids
    with layout_attention(model), warnings.catch_warnings(), _calling(tokens.layout):
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        warnings.simplefilter("error", torch.jit.TracerWarning)  # something depends on more than shapes
        whole, reading = (torch.jit.trace(body, x, check_trace=False) for x in (inputs, (*inputs, tokens.read)))
    return whole, reading


def _right(model: PreTrainedModel, graphs: tuple[Graph, Graph]) -> bool:
    """Whether the graphs give what the model gives for other tokens."""
    tokens = _Tokens([4, 1, 6], read=[1, 2, 9])
    with layout_attention(model):
        for read in (None, tokens.read):
            expected = own_states(model.base_model, tokens.ids, tokens.layout.position_ids, tokens.layout, read)
            found = _replay(graphs, tokens.ids, tokens.layout, read)
            if not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                return False
    return True


class _Tokens:
    """Sequences of these lengths, of tokens that any vocabulary has."""

    def __init__(self, lengths: list[int], read: list[int]) -> None:
        self.ids = (torch.arange(sum(lengths)) + len(lengths))[None]
        self.layout, self.read = PackedLayout(lengths), torch.tensor(read)
