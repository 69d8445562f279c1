"""The parts of the vllm engine that need no vLLM: arguments, the way weights travel, and who waits for whom."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from hone.rollout import hand_over
from hone.rollout.gate import Gate
from hone.rollout.hand_over import buckets, read, shared
from hone.rollout.vllm.arguments import EngineArguments, vllm_load_format

WEIGHTS = [
    ("a", torch.randn(7, 5)),
    ("b", torch.randn(3).bfloat16()),
    ("c", torch.tensor(2.5)),
    ("d", torch.arange(6).view(2, 3).t()),
    ("e", torch.empty(0, 4)),
    ("f", torch.randn(100, 9, dtype=torch.float16)),
]


@pytest.mark.parametrize("size", [1, 200, 2**20])
def test_buckets_hold_all_weights_in_order_and_few_bytes_each(size):
    found = list(buckets(WEIGHTS, size))
    assert [name for bucket in found for name, _ in bucket] == [name for name, _ in WEIGHTS]
    for bucket in found:
        assert len(bucket) == 1 or sum(t.numel() * t.element_size() for _, t in bucket) <= size
    assert len(found) == {1: 6, 200: 3, 2**20: 1}[size]


def received(path: str, layout: list) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensor.clone()) for name, tensor in read(path, layout)]


def test_another_process_reads_the_same_weights_and_the_file_is_gone_after():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        with shared(WEIGHTS) as (path, layout):
            found = other.submit(received, path, layout).result(timeout=100)
        assert not os.path.exists(path)
    assert [name for name, _ in found] == [name for name, _ in WEIGHTS]
    for (_, tensor), (_, wanted) in zip(found, WEIGHTS, strict=True):
        assert tensor.dtype == wanted.dtype and torch.equal(tensor, wanted)


def test_who_has_read_a_bucket_keeps_it_when_later_ones_have_come():
    kept = []
    for bucket in buckets(WEIGHTS, 200):
        with shared(bucket) as (path, layout):
            kept += read(path, layout)
    assert all(torch.equal(tensor, wanted) for (_, tensor), (_, wanted) in zip(kept, WEIGHTS, strict=True))


def test_where_shared_memory_is_too_small_a_temporary_file_takes_the_weights(monkeypatch, tmp_path):
    allocate = os.posix_fallocate
    places: list[str] = []

    def small_memory(descriptor: int, first: int, size: int) -> None:
        places.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        if places[-1].startswith("/dev/shm"):
            raise OSError("no space left on device")
        allocate(descriptor, first, size)

    monkeypatch.setattr(hand_over, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", small_memory)
    with shared(WEIGHTS) as (path, layout):
        assert Path(path).parent == tmp_path
        assert torch.equal(dict(read(path, layout))["a"], WEIGHTS[0][1])
    monkeypatch.setattr(hand_over, "gettempdir", lambda: "/dev/shm")
    with pytest.raises(OSError, match="neither has them"), shared(WEIGHTS):
        pass
    assert not [place for place in places if os.path.exists(place)]


def test_an_update_waits_for_those_inside_and_holds_back_those_that_come():
    async def run() -> list[str]:
        gate, order, finish = Gate(), [], asyncio.Event()

        async def inside(name: str, wait: asyncio.Event | None = None) -> None:
            async with gate.passing():
                order.append(f"{name} in")
                if wait is not None:
                    await wait.wait()
                order.append(f"{name} out")

        async def update(name: str) -> None:
            async with gate.alone():
                order.append(f"{name} begins")
                await asyncio.sleep(0)
                order.append(f"{name} ends")

        tasks = [asyncio.create_task(inside("a", finish)), asyncio.create_task(inside("b", finish))]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(update("one")), asyncio.create_task(update("two"))]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(inside("c"))]
        await asyncio.sleep(0)
        assert order == ["a in", "b in"]
        tasks[1].cancel()  # who is cancelled has left
        finish.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    order = asyncio.run(run())
    assert order[:3] == ["a in", "b in", "a out"] and "b out" not in order
    for name in ("one", "two"):
        assert order[order.index(f"{name} begins") + 1] == f"{name} ends"
    assert order.index("c in") > order.index("one ends")


def test_what_is_not_said_is_left_to_vllm_and_the_users_own_arguments_are_added():
    made = EngineArguments("m", "float32", 0, 128, 8, 64, False, {}, more={"block_size": 16}).for_vllm()
    assert made["block_size"] == 16 and made["model"] == "m" and made["skip_tokenizer_init"]
    assert "enable_chunked_prefill" not in made and "more" not in made


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("dummy_dtensor", "dummy"), ("dummy_hf", "dummy"), ("dummy_megatron", "dummy"), ("dummy", "dummy"),
        ("safetensors", "safetensors"), ("auto", "auto"), ("hf", "auto"), ("dtensor", "auto"), ("megatron", "auto"),
    ],
)  # fmt: skip
def test_load_formats_mean_random_weights_or_the_models_files(ours, theirs):
    assert vllm_load_format(ours) == theirs
