"""The one container that flows through the house: N sequences laid end to end, never padded by default.

Per-token columns are flat tensors that share `offsets`; per-sequence columns have one entry a row. A Batch is a value:
every operation gives a new one and leaves its argument as it was (columns may be shared, never written to).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Row = Tensor | np.ndarray
LONG_ROW = 256  # tokens


class Batch:
    """Ragged, columnar batch.

    offsets: [N+1] int64 on the CPU, sequence i is tokens offsets[i]:offsets[i+1]
    tokens:  name -> [offsets[-1], ...] tensor
    rows:    name -> [N, ...] tensor or numpy array (object arrays hold anything)
    """

    def __init__(self, offsets: Tensor, tokens: Mapping[str, Tensor], rows: Mapping[str, Row] | None = None) -> None:
        self.offsets = offsets
        self.tokens = dict(tokens)
        self.rows = dict(rows or {})
        self._check()

    def _check(self) -> None:
        if self.offsets.dtype != torch.int64 or self.offsets.dim() != 1 or len(self.offsets) == 0:
            raise ValueError("offsets must be a one-dimensional int64 tensor of N+1 bounds")
        for name, column in self.tokens.items():
            if len(column) != self.num_tokens:
                raise ValueError(
                    f"token column {name!r} has {len(column)} entries, the batch has {self.num_tokens} tokens"
                )
        for name, row in self.rows.items():
            if len(row) != len(self):
                raise ValueError(f"row column {name!r} has {len(row)} entries for {len(self)} sequences")

    @classmethod
    def from_sequences(cls, tokens: Mapping[str, Sequence[Any]], rows: Mapping[str, Any] | None = None) -> Batch:
        """Builds a batch from one list (or tensor) per sequence in each token column."""
        columns = {name: [torch.as_tensor(s) for s in sequences] for name, sequences in tokens.items()}
        first = next(iter(columns.values()))
        offsets = torch.zeros(len(first) + 1, dtype=torch.int64)
        offsets[1:] = torch.tensor([len(s) for s in first], dtype=torch.int64).cumsum(0)
        for name, sequences in columns.items():
            if [len(s) for s in sequences] != [len(s) for s in first]:
                raise ValueError(f"token column {name!r} has other sequence lengths than {next(iter(columns))!r}")
        flat = {name: torch.cat(s) if s else torch.zeros(0) for name, s in columns.items()}
        return cls(offsets, flat, {name: _as_row(values) for name, values in (rows or {}).items()})

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __contains__(self, name: str) -> bool:
        return name in self.tokens or name in self.rows

    def __getitem__(self, name: str) -> Any:
        if name in self.tokens:
            return self.tokens[name]
        if name in self.rows:
            return self.rows[name]
        raise KeyError(f"the batch has no column {name!r}; it has {sorted(self.tokens)} and {sorted(self.rows)}")

    @property
    def num_tokens(self) -> int:
        return int(self.offsets[-1])

    @property
    def lengths(self) -> Tensor:
        """[N] tokens in each sequence."""
        return self.offsets.diff()

    @property
    def segment_ids(self) -> Tensor:
        """[tokens] the row each token belongs to."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths)

    def with_tokens(self, **columns: Tensor) -> Batch:
        return Batch(self.offsets, {**self.tokens, **columns}, self.rows)

    def with_rows(self, **columns: Any) -> Batch:
        return Batch(self.offsets, self.tokens, {**self.rows, **{k: _as_row(v) for k, v in columns.items()}})

    def only(self, names: Iterable[str]) -> Batch:
        """The same sequences with the named columns alone (a smaller thing to send)."""
        wanted = set(names)
        return Batch(
            self.offsets,
            {k: v for k, v in self.tokens.items() if k in wanted},
            {k: v for k, v in self.rows.items() if k in wanted},
        )

    def select(self, indices: Tensor | np.ndarray | Sequence[int]) -> Batch:
        """Rows in the given order; an index may come more than once or not at all."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        offsets = torch.zeros(len(index) + 1, dtype=torch.int64)
        offsets[1:] = self.lengths[index].cumsum(0)
        rows = {k: _pick_rows(v, index) for k, v in self.rows.items()}
        return Batch(offsets, self._selected(index, offsets), rows)

    def _selected(self, index: Tensor, offsets: Tensor) -> dict[str, Tensor]:
        """Long rows are copied run by run, several times as fast as the gather of tokens that suits short ones."""
        if int(offsets[-1]) > LONG_ROW * len(index):
            bounds = list(zip(self.offsets[index].tolist(), self.offsets[index + 1].tolist(), strict=True))
            return {k: torch.cat([v[begin:end] for begin, end in bounds]) for k, v in self.tokens.items()}
        shift = torch.repeat_interleave(self.offsets[index] - offsets[:-1], offsets.diff())
        source = torch.arange(int(offsets[-1])) + shift
        return {k: v.index_select(0, source.to(v.device)) for k, v in self.tokens.items()}

    def slice(self, start: int, stop: int) -> Batch:
        """Rows start:stop as views, without copying."""
        lo, hi = int(self.offsets[start]), int(self.offsets[stop])
        tokens = {k: v[lo:hi] for k, v in self.tokens.items()}
        return Batch(self.offsets[start : stop + 1] - lo, tokens, {k: v[start:stop] for k, v in self.rows.items()})

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """Consecutive pieces of the given numbers of rows."""
        if sum(sizes) != len(self):
            raise ValueError(f"cannot split {len(self)} sequences into pieces of {list(sizes)}")
        bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        return [self.slice(int(a), int(b)) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]

    def repeat(self, n: int) -> Batch:
        """Each row n times, copies side by side."""
        return self.select(torch.arange(len(self)).repeat_interleave(n))

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """Batches with the same columns, one after the other."""
        first = batches[0]
        for other in batches[1:]:
            if other.tokens.keys() != first.tokens.keys() or other.rows.keys() != first.rows.keys():
                differing = set(other.tokens) ^ set(first.tokens) | set(other.rows) ^ set(first.rows)
                raise ValueError(f"batches to concatenate differ in the columns {sorted(differing)}")
        lengths = torch.cat([b.lengths for b in batches])
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
        offsets[1:] = lengths.cumsum(0)
        tokens = {k: torch.cat([b.tokens[k] for b in batches]) for k in first.tokens}
        return cls(offsets, tokens, {k: _concat_rows([b.rows[k] for b in batches]) for k in first.rows})

    def row_sums(self, column: Tensor) -> Tensor:
        """[N] the sums of a per-token column over each sequence."""
        return torch.segment_reduce(column, "sum", lengths=self.lengths.to(column.device), initial=0)

    def padded(
        self, name: str, *, side: str = "right", length: int | None = None, fill: Any = 0, starts: Tensor | None = None
    ) -> Tensor:
        """A per-token column as a rectangle [N, length, ...], padded with `fill` on the given side.

        starts: [N] leaves out the first starts[i] tokens of each sequence (the prompts, say).
        """
        column = self.tokens[name]
        kept = self._kept(starts)
        width = self._width(kept, length)
        out = torch.full((len(self), width, *column.shape[1:]), fill, dtype=column.dtype, device=column.device)
        for row, (begin, end) in zip(out.unbind(0), kept, strict=True):
            _side(row, end - begin, side).copy_(column[begin:end])
        return out

    def ragged(self, matrix: Tensor, *, side: str = "right", starts: Tensor | None = None, fill: Any = 0) -> Tensor:
        """The inverse of `padded`: the rectangle's real entries as a flat [tokens, ...] column, `fill` elsewhere."""
        kept = self._kept(starts)
        self._width(kept, matrix.shape[1])
        out = torch.full((self.num_tokens, *matrix.shape[2:]), fill, dtype=matrix.dtype, device=matrix.device)
        for row, (begin, end) in zip(matrix.unbind(0), kept, strict=True):
            out[begin:end] = _side(row, end - begin, side)
        return out

    def _kept(self, starts: Tensor | None) -> list[tuple[int, int]]:
        begins = self.offsets[:-1] if starts is None else self.offsets[:-1] + starts
        return list(zip(begins.tolist(), self.offsets[1:].tolist(), strict=True))

    def _width(self, kept: Sequence[tuple[int, int]], length: int | None) -> int:
        longest = max((end - begin for begin, end in kept), default=0)
        if length is not None and length < longest:
            raise ValueError(f"a rectangle of length {length} cannot hold a sequence of {longest} tokens")
        return longest if length is None else length

    def to(self, device: torch.device | str) -> Batch:
        """Token and row tensors on the device; `offsets` stays on the CPU, where bounds are read."""
        rows = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in self.rows.items()}
        return Batch(self.offsets, {k: v.to(device) for k, v in self.tokens.items()}, rows)

    def __getstate__(self) -> dict[str, Any]:
        # Tensors travel as numpy arrays, whose buffers pickle protocol 5 (and Ray's object store) move without a copy.
        rows = {k: ("tensor", _numpy(v)) if isinstance(v, Tensor) else ("numpy", v) for k, v in self.rows.items()}
        tokens = {k: _numpy(v) for k, v in self.tokens.items()}
        return {"offsets": self.offsets.numpy(), "tokens": tokens, "rows": rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.offsets = torch.from_numpy(state["offsets"])
        self.tokens = {k: _tensor(v) for k, v in state["tokens"].items()}
        self.rows = {k: _tensor(v) if kind == "tensor" else v for k, (kind, v) in state["rows"].items()}

    def to_bytes(self) -> bytes:
        return pickle.dumps(self, protocol=5)

    @staticmethod
    def from_bytes(data: bytes) -> Batch:
        return pickle.loads(data)

    def __repr__(self) -> str:
        return f"Batch({len(self)} sequences, {self.num_tokens} tokens, {sorted(self.tokens)}, {sorted(self.rows)})"


def _side(row: Tensor, count: int, side: str) -> Tensor:
    """The first or last `count` places of a row."""
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}")
    return row[:count] if side == "right" else row[len(row) - count :]


def _as_row(values: Any) -> Row:
    """Tensors and arrays as they are; lists become an object array, so that nothing is guessed about their contents."""
    if isinstance(values, Tensor | np.ndarray):
        return values
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _pick_rows(column: Row, index: Tensor) -> Row:
    return column[index.numpy()] if isinstance(column, np.ndarray) else column[index.to(column.device)]


def _concat_rows(columns: Sequence[Row]) -> Row:
    if isinstance(columns[0], Tensor):
        return torch.cat([c for c in columns if isinstance(c, Tensor)])
    return np.concatenate(columns)


def _numpy(tensor: Tensor) -> Any:
    """numpy has no bfloat16: those bits travel as int16, marked by a pair."""
    cpu = tensor.detach().cpu()
    return ("bfloat16", cpu.view(torch.int16).numpy()) if cpu.dtype == torch.bfloat16 else cpu.numpy()


def _tensor(array: Any) -> Tensor:
    if isinstance(array, tuple):
        return torch.from_numpy(array[1]).view(torch.bfloat16)
    return torch.from_numpy(array)
