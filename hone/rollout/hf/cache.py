"""The slot cache: keys and values of every running row, in one rectangle per layer, and how attention reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hone.models.attention import causal_attention, masked_weights, visible_attention
from hone.models.rectangles import Rectangles, similar
from hone.models.scripted import without_python

LENGTH_STEP = 16


class SlotCache:
    """A row's token at position p lies in the row's slot, column p. Running rows are in the slots 0 .. R - 1.

    The rectangle grows (in rows and columns) when more is asked for, so that short work never pays for the longest.
    """

    def __init__(self) -> None:
        self.slots = self.columns = 0
        self.keys: list[Tensor | None] = []  # per layer [slots, kv_heads, columns, D]
        self.values: list[Tensor | None] = []

    def reserve(self, slots: int, columns: int) -> None:
        """Makes room for at least this many slots and columns, keeping what is there."""
        self.slots, self.columns = slots, -(-columns // LENGTH_STEP) * LENGTH_STEP
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                if old is not None and (old.shape[0] < self.slots or old.shape[2] < self.columns):
                    store[layer] = self._grown(old)

    def _grown(self, old: Tensor) -> Tensor:
        slots = more_slots(old.shape[0], self.slots)
        new = old.new_zeros(slots, old.shape[1], max(self.columns, old.shape[2]), old.shape[3])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def write(self, layer: int, slots: Tensor, columns: Tensor, k: Tensor, v: Tensor) -> None:
        """Puts k, v [n, kv_heads, D] at (slots[n], columns[n]). In mixed precision the rotation of keys gives fp32, of
        which products take the values' format: nothing more is kept."""
        while len(self.keys) <= layer:
            self.keys.append(None)
            self.values.append(None)
        for store, new in ((self.keys, k.to(v.dtype)), (self.values, v)):
            tensor = store[layer]
            if tensor is None:
                tensor = store[layer] = new.new_zeros(self.slots, new.shape[1], self.columns, new.shape[2])
            heads = torch.arange(new.shape[1], device=new.device)
            places = (slots[:, None] * new.shape[1] + heads) * tensor.shape[2] + columns[:, None]
            # Several times as fast as to assign to tensor[slots, :, columns].
            tensor.view(-1, new.shape[2]).index_copy_(0, places.flatten(), new.flatten(0, 1))

    def tensors(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values [slots, kv_heads, columns, D] of a layer that has been written to."""
        k, v = self.keys[layer], self.values[layer]
        assert k is not None and v is not None
        return k, v

    def select(self, layer: int, slots: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Copies [n, kv_heads, columns, D] of the slots [n] and the first columns."""
        k, v = (x[:, :, :columns].index_select(0, slots) for x in self.tensors(layer))
        return k, v

    def copy(self, moves: Sequence[tuple[int, int]], columns: int) -> None:
        """The first columns of (source slot, target slot), all at once: a slot may be both."""
        tensors = [
            tensor[:, :, :columns] for store in (self.keys, self.values) for tensor in store if tensor is not None
        ]
        if tensors:
            source, target = torch.tensor(moves, device=tensors[0].device).T
            for tensor in tensors:  # more than twice as fast as tensor[target] = tensor[source]
                tensor.index_copy_(0, target, tensor.index_select(0, source))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for store in (self.keys, self.values) for tensor in store if tensor is not None)

    def clear(self) -> None:
        self.keys, self.values = [], []


def more_slots(having: int, wanted: int) -> int:
    """Slots of the cache when there have to be `wanted`: it grows by doubling, so that rows are seldom copied."""
    return having if having >= wanted else max(wanted, 2 * having)


@dataclass(frozen=True)
class Piece:
    """Tokens of a prompt that are computed together: its tokens `past` to `past + length`, for all slots that continue
    it. Those before are in the cache."""

    slots: Sequence[int]
    past: int
    length: int

    def of(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        return prompt_ids[self.past : self.past + self.length]


@dataclass(frozen=True)
class _Continued:
    """A rectangle of pieces that are not the beginning of their prompts."""

    slots: Tensor  # [pieces] of each one, the keys it sees
    columns: int  # K, of the longest
    distance: Tensor  # [pieces, Q, K] tokens from a key to the query; negative where the query must not look


class PrefillLayout:
    """Pieces of distinct prompts laid end to end; their keys and values are stored for every slot that continues them.

    The beginnings of prompts see themselves alone, as in a `PackedLayout`; later pieces also see what is in the cache.
    """

    def __init__(self, cache: SlotCache, pieces: Sequence[Piece], device: torch.device) -> None:
        self.cache = cache
        lengths = [piece.length for piece in pieces]
        starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
        places = [torch.arange(piece.past, piece.past + piece.length) for piece in pieces]
        self.position_ids = torch.cat(places)[None].to(device)
        of_slot = [(slot, i) for i, piece in enumerate(pieces) for slot in piece.slots]
        sizes = torch.tensor([lengths[i] for _, i in of_slot])
        self.slots = torch.repeat_interleave(torch.tensor([slot for slot, _ in of_slot]), sizes).to(device)
        self.columns = torch.cat([places[i] for _, i in of_slot]).to(device)
        self.source = torch.cat([torch.arange(starts[i], starts[i + 1]) for _, i in of_slot]).to(device)
        self.beginnings = similar(lengths, [i for i, piece in enumerate(pieces) if not piece.past])
        later = similar(lengths, [i for i, piece in enumerate(pieces) if piece.past])
        self.continued = [_continued([pieces[i] for i in group], device) for group in later]
        self.rectangles = Rectangles(lengths, [*self.beginnings, *later], device)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        self.cache.write(layer, self.slots, self.columns, k[self.source], v[self.source])
        queries, keys, values = (self.rectangles.pad(x) for x in (q, k, v))
        begun = len(self.beginnings)
        outputs = [
            causal_attention(*shaped, scale=scale, window=window, softcap=softcap)
            for shaped in zip(queries[:begun], keys[:begun], values[:begun], strict=True)
        ]
        for query, part in zip(queries[begun:], self.continued, strict=True):
            seen = self.cache.select(layer, part.slots, part.columns)
            visible = (part.distance >= 0) & (part.distance < (window or part.columns))
            outputs.append(visible_attention(query, *seen, visible[:, None], scale=scale, softcap=softcap))
        return self.rectangles.unpad(outputs)


def _continued(pieces: Sequence[Piece], device: torch.device) -> _Continued:
    """Of pieces the longest of which is the first; what stands on a shorter one's padding sees what its last token
    does."""
    columns = max(piece.past + piece.length for piece in pieces)
    last = torch.tensor([piece.length for piece in pieces])[:, None] - 1
    at = torch.tensor([piece.past for piece in pieces])[:, None] + torch.arange(pieces[0].length).minimum(last)
    distance = at[:, :, None] - torch.arange(columns)
    return _Continued(torch.tensor([piece.slots[0] for piece in pieces], device=device), columns, distance.to(device))


class DecodeLayout:
    """One new token at the given position of each of R rows, which are in the slots from `first` on; it sees its row's
    slot up to itself."""

    def __init__(self, cache: SlotCache, positions: Tensor, longest: int, first: int = 0) -> None:
        self.cache, self.first = cache, first
        self.positions = positions  # [R]
        self.position_ids = positions[None]
        self.distance = positions[:, None] - torch.arange(longest + 1, device=positions.device)  # [R, columns]
        self._known: dict[tuple[int, ...], Tensor] = {}  # by the shape of a rectangle: layers may differ

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        keys, values = self.cache.tensors(layer)
        heads, columns = keys.shape[1:3]
        places, reads = self._places(heads, columns), None
        if values.device.type == "cpu" and values.dtype == torch.float32 and values.numel() < 2**31:
            reads = self._reads(heads, columns, q.shape[1] // heads)
        attend = without_python(attend_to_slots, q.device)
        return attend(q, k, v, keys, values, places, reads, self.first, self.distance, scale, window, softcap)

    def _places(self, heads: int, columns: int) -> Tensor:
        """[R * heads] where the new tokens stand in a rectangle [slots * heads * columns, D]."""
        if (heads, columns) not in self._known:
            places = self._begins(heads, columns) + self.positions[:, None]
            self._known[heads, columns] = places.flatten()
        return self._known[heads, columns]

    def _reads(self, heads: int, columns: int, groups: int) -> Tensor:
        """[R * heads * groups, K] where all that the query heads of a kv head may see stands in such a rectangle."""
        if (heads, columns, groups) not in self._known:
            seen = torch.arange(self.distance.shape[1], device=self.positions.device)
            reads = (self._begins(heads, columns)[:, :, None, None] + seen).to(torch.int32)
            self._known[heads, columns, groups] = reads.expand(-1, -1, groups, -1).flatten(0, 2)
        return self._known[heads, columns, groups]

    def _begins(self, heads: int, columns: int) -> Tensor:
        """[R, heads] where a row's first token stands."""
        rows = torch.arange(self.first, self.first + len(self.positions), device=self.positions.device)
        return (rows[:, None] * heads + torch.arange(heads, device=rows.device)) * columns


def attend_to_slots(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
    reads: Tensor | None,
    first: int,
    distance: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Stores k, v [R, kv_heads, D] at their places in a layer's rectangles, and lets q [R, heads, D] see what is at a
    distance of 0 or more in the slots from `first` on -> [R, heads, D]. With `reads` the weighted sum of values is that
    of a bag of embeddings, a fifth faster than products of so few rows. Kept to what TorchScript understands."""
    keys.view(-1, keys.shape[3]).index_copy_(0, places, k.to(keys.dtype).flatten(0, 1))
    values.view(-1, values.shape[3]).index_copy_(0, places, v.to(values.dtype).flatten(0, 1))
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    seen = [x.narrow(0, first, distance.shape[0]).narrow(2, 0, distance.shape[1]) for x in (keys, values)]
    weights = masked_weights(q[:, :, None], seen[0], visible[:, None, None], scale=scale, softcap=softcap)
    if reads is None:
        return (weights.to(values.dtype) @ seen[1]).reshape(q.shape[0], q.shape[1], values.shape[3])
    bags = torch.arange(0, reads.numel(), reads.shape[1], device=reads.device, dtype=reads.dtype)
    table, flat = values.view(-1, values.shape[3]), weights.reshape(-1)
    summed = torch.embedding_bag(table, reads.reshape(-1), bags, per_sample_weights=flat)[0]
    return summed.reshape(q.shape[0], q.shape[1], values.shape[3])
