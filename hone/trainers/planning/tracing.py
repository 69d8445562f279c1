"""How much memory a pass takes, by running it on tensors without data: the model's own code, the run's own attention,
log-probs and cache, and no arithmetic.

torch's FakeTensor knows shapes, formats and storages alone. A deep model is run with a few of its layers and with some
more, whose difference is what the others add, and log-probs that are computed in chunks likewise with a few of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedModel

from hone.errors import UserError
from hone.models.attention import Layout
from hone.rollout.hf.cache import DecodeLayout, Piece, PrefillLayout, SlotCache
from hone.rollout.hf.next_tokens import NextTokens
from hone.rollout.hf.sampling import RowSampling, sample
from hone.rollout.interface import Sampling
from hone.trainers.planning.passes import Micro
from hone.training.activations import SMALLEST_BYTES
from hone.training.outputs import ForwardOptions, OutputModule, Reference
from hone.training.peak_memory import PeakMemory
from hone.training.sharding import ShardOptions, layer_units

FEW_LAYERS = 2  # the first one alone has nothing before it
FEW_CHUNKS = 2  # of log-probs; the others take what one of these takes, but for the logits


@dataclass(frozen=True)
class Peak:
    """Bytes. total: most that a pass holds beside weights and their gradients; host: of it in CPU memory, where
    activations are offloaded."""

    total: int
    host: int = 0


@dataclass(frozen=True)
class _Traced:
    """run: of the layers that were run; of_layer: what each adds, 0 where all of them were run."""

    total: int
    run: int
    of_layer: int
    host: int


class Tracer:
    """A model built without weights; whoever wants to know of its weights asks before.

    compute: the format of the weights while they are gathered, where they are sharded; None: their own
    """

    def __init__(self, model: PreTrainedModel, compute: torch.dtype | None = None) -> None:
        self.model = model
        self.layers = _like_layers(model)
        self.depth = len(self.layers) if self.layers is not None else 0
        period = _period(model)
        self.few = max(period, FEW_LAYERS)
        self.more = min(self.few + period, self.depth)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.fresh = False  # whether a pass begins without gradients
        self._cut(self.more)
        self._without_data(compute)

    def update(
        self, options: ForwardOptions, micro: Micro, want: frozenset[str], watch: frozenset[str], *, only: bool
    ) -> Peak:
        """The forward and backward pass of an update.

        only: no micro-batch comes before it, so that gradients come as activations go, and the two do not add up
        """
        self.model.train()
        self.fresh = only and self.depth <= self.more
        traced = self._over_chunks(options, micro, want, watch)
        gradients = sum(p.nbytes for p in self.model.parameters() if p.requires_grad)
        total = traced.total - gradients if self.fresh else traced.total
        if only and not self.fresh:
            gradients += (self.depth - self.more) * self._gradients_of_layer()
            # The peak is at the loss, or at the end, when all layers but the first have let go of their activations.
            total = max(total - gradients, total - (self.depth - 1) * traced.of_layer)
        return Peak(max(total, 0), traced.host)

    def scoring(self, options: ForwardOptions, micro: Micro, want: frozenset[str]) -> Peak:
        """A pass without gradient."""
        self.model.eval()
        with torch.no_grad():
            traced = self._over_chunks(options, micro, want, frozenset())
        return Peak(traced.total)

    def generation(self, compute: torch.dtype, admitted: Sequence[Micro], longest_piece: int) -> tuple[int, int]:
        """The prompts of each of `admitted` computed together, one after the other, then a token for every row:
        peak, and of it the cache. Of a longer prompt the last piece is computed, which sees all the others."""
        caches: list[int] = []

        def generate() -> tuple[int, int]:
            with PeakMemory() as memory:
                caches.append(self._generate(compute, admitted, longest_piece))
            return memory.peak, 0

        peak = self._over_depths(generate)
        return peak.total, caches[-1] * self.depth // self.more if self.depth else caches[-1]

    def _lay_out_gradients(self) -> None:
        """As an earlier micro-batch has left them, or none."""
        for parameter in self.model.parameters():
            there = parameter.requires_grad and not self.fresh
            parameter.grad = self._empty(parameter, parameter.dtype) if there else None

    def _gradients_of_layer(self) -> int:
        assert self.layers is not None
        return sum(p.nbytes for p in self.layers[0].parameters() if p.requires_grad)

    def _over_chunks(
        self, options: ForwardOptions, micro: Micro, want: frozenset[str], watch: frozenset[str]
    ) -> _Traced:
        chunk = options.memory.chunk
        count = -(-micro.trained // chunk) if chunk and "values" not in want else 0
        if count <= 2 * FEW_CHUNKS:
            return self._over_depths(lambda: self._pass(options, micro, want, watch, micro.trained))
        tokens = (chunk or 0) * FEW_CHUNKS
        few = self._over_depths(lambda: self._pass(options, micro, want, watch, tokens))
        of_chunk = (self._pass(options, micro, want, watch, 2 * tokens)[0] - few.run) // FEW_CHUNKS
        return replace(few, total=few.total + (count - FEW_CHUNKS) * of_chunk)

    def _pass(
        self, options: ForwardOptions, micro: Micro, want: frozenset[str], watch: frozenset[str], tokens: int
    ) -> tuple[int, int]:
        """With the first `tokens` of the trained ones: peak, and of it in CPU memory."""
        module = OutputModule(self.model, replace(options, offload=False, compiled=False, sequence_ranks=1))
        batch, trained = micro.batch(self.model.config.get_text_config().vocab_size)
        trained = trained[:tokens]
        hooks = _OnHost(self.mode) if options.offload else None
        if torch.is_grad_enabled():
            self._lay_out_gradients()
        with PeakMemory() as memory:
            with hooks or nullcontext():
                outputs = module(batch, trained, want, watch, self._reference(want, len(trained)))
            if torch.is_grad_enabled():
                loss: Any = sum(outputs[name].sum() for name in sorted(want))
                loss.backward()
        return memory.peak, hooks.most if hooks else 0

    def _reference(self, want: frozenset[str], tokens: int) -> Reference | None:
        if "full_kl" not in want:
            return None
        with self.mode:
            return Reference(torch.empty(tokens, self.model.config.get_text_config().hidden_size), None)

    def _generate(self, compute: torch.dtype, admitted: Sequence[Micro], longest_piece: int) -> int:
        """Bytes of the cache. Of the prompts only the first and the last are run, which have the least and the most
        beside them."""
        next_tokens, cache = NextTokens(self.model, compute), SlotCache()
        longest, running = max(admitted[0].lengths), 0
        for i, micro in enumerate(admitted):
            first, running = running, running + len(micro.lengths)
            cache.reserve(running, longest)
            if i in (0, len(admitted) - 1):
                ids, layout, pick = _prefill(cache, micro, first, longest_piece)
                _draw(next_tokens.logits(ids, layout, pick))
        layout = DecodeLayout(cache, torch.full((running,), longest - 1), longest - 1)
        _draw(next_tokens.logits(_ids(running), layout, None))
        return cache.nbytes

    def _over_depths(self, run: Callable[[], tuple[int, int]]) -> _Traced:
        if self.depth <= self.more:
            peak, host = run()
            return _Traced(peak, peak, 0, host)
        self._cut(self.few)
        few, few_host = run()
        self._cut(self.more)
        more, more_host = run()
        added, rest = self.more - self.few, self.depth - self.more
        of_layer, of_layer_host = (more - few) // added, (more_host - few_host) // added
        return _Traced(more + rest * of_layer, more, of_layer, more_host + rest * of_layer_host)

    def _cut(self, depth: int) -> None:
        """Leaves the model its first layers."""
        if self.layers is not None and self.depth > self.more:
            _replace_list(self.model, self.layers, depth)

    def _without_data(self, compute: torch.dtype | None) -> None:
        """Parameters and buffers become tensors that have a storage of the right size and nothing in it."""
        made: dict[int, nn.Parameter] = {}
        for module in self.model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if id(parameter) not in made:
                        empty = self._empty(parameter, compute or parameter.dtype)
                        made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                    module._parameters[name] = made[id(parameter)]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = self._empty(buffer, buffer.dtype)

    def _empty(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        with self.mode:
            return torch.empty(like.shape, dtype=dtype)


def _prefill(cache: SlotCache, micro: Micro, first_slot: int, longest_piece: int) -> tuple[Tensor, Layout, Tensor]:
    slots: dict[int, list[int]] = defaultdict(list)
    for slot, family in enumerate(micro.families, start=first_slot):
        slots[family].append(slot)
    pieces = []
    for family, of_family in slots.items():
        prompt = micro.prompts[micro.families.index(family)]
        length = min(prompt, longest_piece)
        pieces.append(Piece(of_family, prompt - length, length))
    layout = PrefillLayout(cache, pieces, torch.device("cpu"))
    return _ids(sum(piece.length for piece in pieces)), layout, torch.zeros(len(micro.families), dtype=torch.int64)


def _ids(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64)


def _draw(logits: Tensor) -> None:
    rows = RowSampling.of([Sampling(max_tokens=1)] * len(logits), logits.device)
    sample(logits, rows, torch.zeros(len(logits)))


class _OnHost(saved_tensors_hooks):
    """Counts what would go to CPU memory, and lets go of it."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.now = self.most = 0

        def pack(tensor: Tensor) -> Any:
            owner = tensor if tensor._base is None else tensor._base
            small = tensor.nbytes < SMALLEST_BYTES or not isinstance(tensor, FakeTensor)
            if isinstance(owner, nn.Parameter) or small:
                return tensor
            self.now += tensor.nbytes
            self.most = max(self.most, self.now)
            return tensor.shape, tensor.dtype

        def unpack(packed: Any) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            shape, dtype = packed
            with mode:
                back = torch.empty(shape, dtype=dtype)
            self.now -= back.nbytes
            return back

        super().__init__(pack, unpack)


def _like_layers(model: PreTrainedModel) -> nn.ModuleList | None:
    """The model's layers if they are all alike, so that some of them stand for all."""
    try:
        layers = set(layer_units(model, ShardOptions()))
    except UserError:  # the model names none
        return None
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) and set(module) <= layers:
            sizes = {sum(p.numel() for p in layer.parameters()) for layer in module}
            return module if len(sizes) == 1 and len(module) == len(layers) else None
    return None


def _period(model: PreTrainedModel) -> int:
    """Layers after which their kinds begin anew: 1 where they are all of one kind."""
    kinds = list(getattr(model.config.get_text_config(), "layer_types", None) or [])
    return next((n for n in range(1, len(kinds)) if kinds[n:] == kinds[:-n]), 1)


def _replace_list(model: nn.Module, layers: nn.ModuleList, depth: int) -> None:
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) and child[0] is layers[0]:
                setattr(module, name, layers[:depth])
                return


@contextmanager
def traceable() -> Iterator[None]:
    """Around a pass: a model whose computation depends on its data cannot be run without."""
    try:
        yield
    except RuntimeError as problem:  # NotImplementedError is one
        raise UntraceableError(problem) from problem


class UntraceableError(Exception):
    """Nothing can be said of a pass without running it."""

    def __init__(self, problem: Exception) -> None:
        said = str(problem).strip().splitlines() or [""]
        super().__init__(f"{type(problem).__name__}: {said[0]:.120}".rstrip(": "))
