"""The slot cache: keys and values of every running row, in one rectangle per layer, and how attention reads it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hone.models.attention import PackedLayout, masked_attention

LENGTH_STEP = 16


class SlotCache:
    """Rows 0..R-1 are running; row r's token at position p lies in slot r, column p.

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

    def read(self, layer: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Views [rows, kv_heads, columns, D] of the first rows and columns."""
        k, v = self.keys[layer], self.values[layer]
        assert k is not None and v is not None
        return k[:rows, :, :columns], v[:rows, :, :columns]

    def move(self, source: Tensor, target: Tensor, columns: int) -> None:
        """Copies whole rows, to close the gaps that finished rows leave."""
        for store in (self.keys, self.values):
            for tensor in store:
                if tensor is not None:
                    tensor[target, :, :columns] = tensor[source, :, :columns]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for store in (self.keys, self.values) for tensor in store if tensor is not None)

    def clear(self) -> None:
        self.keys, self.values = [], []


def more_slots(having: int, wanted: int) -> int:
    """Slots of the cache when there have to be `wanted`: it grows by doubling, so that rows are seldom copied."""
    return having if having >= wanted else max(wanted, 2 * having)


class PrefillLayout(PackedLayout):
    """Distinct prompts laid end to end; each prompt's keys and values are stored for every slot that continues it."""

    def __init__(
        self,
        cache: SlotCache,
        lengths: Sequence[int],
        prompt_of_slot: Sequence[int],
        first_slot: int,
        device: torch.device,
    ) -> None:
        super().__init__(lengths, device)
        self.cache = cache
        starts = torch.tensor([0, *lengths]).cumsum(0)
        sizes = [lengths[p] for p in prompt_of_slot]
        source = [torch.arange(n) + starts[p] for n, p in zip(sizes, prompt_of_slot, strict=True)]
        self.slots = torch.repeat_interleave(torch.arange(len(sizes)) + first_slot, torch.tensor(sizes)).to(device)
        self.columns = torch.cat([torch.arange(n) for n in sizes]).to(device)
        self.source = torch.cat(source).to(device)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        self.cache.write(layer, self.slots, self.columns, k[self.source], v[self.source])
        return super().attend(layer, q, k, v, scale=scale, window=window, softcap=softcap)


class DecodeLayout:
    """One new token for each of the rows 0..R-1, at the given positions; it sees its row's slot up to itself."""

    def __init__(self, cache: SlotCache, positions: Tensor, longest: int) -> None:
        self.cache = cache
        self.positions = positions  # [R]
        self.position_ids = positions[None]
        self.rows = torch.arange(len(positions), device=positions.device)
        self.columns = longest + 1
        self.distance = positions[:, None] - torch.arange(self.columns, device=positions.device)  # [R, columns]
        self.visible = (self.distance >= 0)[:, None, None]

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        self.cache.write(layer, self.rows, self.positions, k, v)
        keys, values = self.cache.read(layer, len(self.rows), self.columns)
        visible = self.visible if window is None else self.visible & (self.distance < window)[:, None, None]
        return masked_attention(q[:, :, None], keys, values, visible, scale=scale, softcap=softcap)[:, :, 0]
