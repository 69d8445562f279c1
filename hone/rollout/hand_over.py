"""Weights on their way to another process of this machine: buckets of tensors in files of shared memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir, mkstemp

import torch
from torch import Tensor

BUCKET = 256 * 2**20  # bytes; a larger tensor has a bucket of its own
ALIGNMENT = 64
Layout = list[list]  # type: ignore[type-arg]  # per tensor [name, dtype, shape, first byte], as it travels
Bucket = list[tuple[str, Tensor]]


def buckets(weights: Iterable[tuple[str, Tensor]], size: int = BUCKET) -> Iterator[Bucket]:
    """The weights in their order, as many together as `size` bytes hold."""
    together: Bucket = []
    held = 0
    for name, tensor in weights:
        if together and held + _room(tensor) > size:
            yield together
            together, held = [], 0
        together.append((name, tensor))
        held += _room(tensor)
    if together:
        yield together


@contextmanager
def shared(bucket: Bucket) -> Iterator[tuple[str, Layout]]:
    """A file with the bucket's tensors, and where each lies in it. Who has read it keeps its memory after the end.

    Every bucket has a file of its own: a reader may need some tensors until later ones have come.
    """
    path = _new_file(sum(_room(tensor) for _, tensor in bucket))
    try:
        region = torch.from_file(str(path), shared=True, size=path.stat().st_size, dtype=torch.uint8)
        layout: Layout = []
        first = 0
        for name, tensor in bucket:
            _place(region, first, tensor.dtype, tensor.shape).copy_(tensor.detach())
            layout.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), first])
            first += _room(tensor)
        yield str(path), layout
    finally:
        path.unlink()


def read(path: str, layout: Layout) -> Bucket:
    """The tensors of a file, as views of its memory."""
    region = torch.from_file(path, shared=True, size=os.path.getsize(path), dtype=torch.uint8)
    return [(name, _place(region, first, getattr(torch, dtype), shape)) for name, dtype, shape, first in layout]


def _room(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT


def _place(region: Tensor, first: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    size = torch.Size(shape).numel() * dtype.itemsize
    return region[first : first + size].view(dtype).view(tuple(shape))


def _new_file(size: int) -> Path:
    """In shared memory where it is large enough (containers often have 64 MB), else among the temporary files. The
    space is taken at once: a mapped page that finds none left ends the process."""
    memory = Path("/dev/shm")
    for folder in (memory, Path(gettempdir())):
        if folder.is_dir() and (path := _taken(folder, max(size, ALIGNMENT))):
            return path
    raise OSError(f"a hand-over of weights needs {size} bytes in {memory} or in {gettempdir()}, and neither has them")


def _taken(folder: Path, size: int) -> Path | None:
    descriptor, name = mkstemp(prefix="hone_weights_", dir=folder)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.unlink(name)
        return None
    finally:
        os.close(descriptor)
    return Path(name)
