"""A model's forward pass as a recorded graph of operations, which runs without Python between them.

On a CPU a small model spends as long in Python as in its operations, and pieces of work in threads side by side wait
for Python's lock after every one of them. TorchScript's interpreter needs no lock. Attention is one operation of the
graph, which asks the layout of the call: one recording serves updates, scoring and generation.

What may depend on more than shapes (experts, dropout, adapters, sharding, code of others) is never recorded and runs as
ever. A recording is compared with the model itself on other tokens, and used for as long as the model keeps its
parameters and hooks.
"""

from __future__ import annotations

import logging
import operator
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hone.models.attention import Layout, PackedLayout, layout_attention
from hone.models.randomness import is_stochastic
from hone.models.scripted import as_written, plain

logger = logging.getLogger(__name__)
SOURCES = ("torch.nn.", "transformers.models.", "transformers.activations")
RECORDED, CHECKED = ([3, 2], [0, 4]), ([4, 1, 6], [1, 2, 9])  # lengths of sequences, and the tokens that are read
TOLERANCE = 1e-4

Graph = Callable[..., Tensor]


class _Call(threading.local):
    layout: Layout  # of the call that the thread is in


_CALL = _Call()
_LIBRARY = torch.library.Library("hone", "DEF")
_LIBRARY.define("attend(Tensor q, Tensor k, Tensor v, int layer, float scale, int? window, float? softcap) -> Tensor")


def _attend(
    q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    return _CALL.layout.attend(layer, q, k, v, scale=scale, window=window, softcap=softcap)


_LIBRARY.impl("attend", _attend, "CompositeImplicitAutograd")


class _AnyLayout:
    """The layout that the model is given while it is recorded."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        return torch.ops.hone.attend(q, k, v, layer, float(scale), window, softcap)


def states(base: Any, input_ids: Tensor, position_ids: Tensor, layout: Any, read: Tensor | None) -> Tensor:
    """Last hidden states [1, tokens, H] of input_ids [1, tokens], as the model's own code computes them."""
    output = base(input_ids=input_ids, position_ids=position_ids, use_cache=False, layout=layout, read_tokens=read)
    return output.last_hidden_state


class _Body(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, input_ids: Tensor, position_ids: Tensor, read: Tensor | None = None) -> Tensor:
        return states(self.base, input_ids, position_ids, _AnyLayout(), read)


class Part:
    """A module as it was when the model was recorded: what it holds, and how many hooks it has."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.holds, self.hooks = module, _holds(module), len(_hooks(module))

    @property
    def same(self) -> bool:
        now = _holds(self.module)
        kept = len(now) == len(self.holds) and all(map(operator.is_, now, self.holds))
        return kept and len(_hooks(self.module)) == self.hooks


def _holds(module: nn.Module) -> list[Any]:
    return [*module._parameters.values(), *module._buffers.values(), *module._modules.values()]


def _hooks(module: nn.Module) -> list[Any]:
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


class Recording:
    """Kept with the model. graphs: of all tokens, and of those that are read; None: it cannot be recorded"""

    def __init__(self, parts: Sequence[Part] = (), graphs: tuple[Graph, Graph] | None = None) -> None:
        self.parts, self.graphs = parts, graphs

    def __deepcopy__(self, memo: dict[int, Any]) -> Recording:
        return Recording()  # a copy of the model has parameters of its own

    @property
    def usable(self) -> bool:
        return bool(self.parts) and all(part.same for part in self.parts)


_RECORDING = threading.Lock()


def recorded_states(model: PreTrainedModel, input_ids: Tensor, layout: Layout, read: Tensor | None) -> Tensor | None:
    """`states` by the recorded graph; None where the model's own code has to run.

    read: the tokens whose states somebody asks for (`prune_last_layer`); None: all of them
    """
    graphs = _graphs(model) if _may_run(model) else None
    return None if graphs is None else _run(graphs, input_ids, layout, read)


def _run(graphs: tuple[Graph, Graph], input_ids: Tensor, layout: Layout, read: Tensor | None) -> Tensor:
    _CALL.layout = layout
    with as_written():
        if read is None:
            return graphs[0](input_ids, layout.position_ids)
        return graphs[1](input_ids, layout.position_ids, read)


def _may_run(model: PreTrainedModel) -> bool:
    """Whether this call may take a recorded graph."""
    return (
        model.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and plain()
        and not (model.training and any(getattr(m, "gradient_checkpointing", False) for m in model.modules()))
    )


def _graphs(model: PreTrainedModel) -> tuple[Graph, Graph] | None:
    base: Any = model.base_model
    with _RECORDING:
        recording = getattr(base, "recording", None)
        if recording is None or not recording.usable:
            parts = [Part(module) for module in base.modules()]
            base.recording = recording = Recording(parts, _record(model) if _can_be_recorded(model) else None)
    return recording.graphs


def _can_be_recorded(model: PreTrainedModel) -> bool:
    modules = list(model.base_model.modules())
    hooks = [hook for module in modules for hook in _hooks(module)]
    return (
        all(type(module).__module__.startswith(SOURCES) for module in modules)
        and all(hook.__module__ == "hone.models.last_layer" for hook in hooks)
        and not any(module._compiled_call_impl or hasattr(module, "experts") for module in modules)
        and not is_stochastic(model)
    )


@torch.no_grad()
def _record(model: PreTrainedModel) -> tuple[Graph, Graph] | None:
    body = _Body(model.base_model).train(model.training)
    try:
        with layout_attention(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated
            warnings.simplefilter("error", torch.jit.TracerWarning)  # something depends on more than shapes
            ids, layout, read = _example(model, *RECORDED)
            _CALL.layout = layout
            inputs = ids, layout.position_ids
            whole, reading = (torch.jit.trace(body, x, check_trace=False) for x in (inputs, (*inputs, read)))
            right = _right(model, (whole, reading))
    except Exception as problem:
        logger.debug("%s runs as it is, since it cannot be recorded: %s", type(model).__name__, problem)
        return None
    return (whole, reading) if right else None


def _right(model: PreTrainedModel, graphs: tuple[Graph, Graph]) -> bool:
    """Whether the graphs give what the model gives for other tokens."""
    ids, layout, some = _example(model, *CHECKED)
    for read in (None, some):
        expected = states(model.base_model, ids, layout.position_ids, layout, read)
        found = _run(graphs, ids, layout, read)
        if not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * float(expected.abs().max())):
            return False
    return True


def _example(model: PreTrainedModel, lengths: list[int], read: list[int]) -> tuple[Tensor, Layout, Tensor]:
    ids = torch.arange(sum(lengths)) + len(lengths)  # small enough for any vocabulary
    return ids[None], PackedLayout(lengths), torch.tensor(read)
