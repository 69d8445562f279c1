"""Attention shared by ranks equals the attention of one process: outputs and gradients, for any heads and tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hone.errors import UserError
from hone.models.attention import Layout, PackedLayout
from hone.models.shared_prompts import SharedPromptLayout
from hone.models.ulysses import SequenceRanks, SlicedLayout, check_shareable
from tests.models_of_families import SHAPE, tiny
from tests.ranks import run_ranks

WIDTH, SCALE = 6, 0.4
SHARED = ([8, 7, 9, 4], [5, 5, 3, 3], [0, 0, 1, 1])  # lengths, prompts, families

# (heads, kv heads, lengths; None: SHARED, window, softcap, width of the values)
CASES: dict[int, list[tuple[int, int, list[int] | None, int | None, float | None, int]]] = {
    2: [
        (4, 2, [5, 9, 3], None, None, WIDTH),
        (4, 1, [5, 9, 4], None, None, WIDTH),  # one kv head for two ranks
        (6, 3, [7, 2], None, None, WIDTH),  # three kv heads for two ranks
        (4, 4, [1], None, None, WIDTH),  # a rank has padding alone
        (4, 2, [6, 11], 3, None, WIDTH),
        (4, 2, [6, 11], 4, 2.0, WIDTH),
        (4, 2, [6, 5], None, 2.0, 3),  # values narrower than keys
        (4, 2, None, None, None, WIDTH),
    ],
    4: [(4, 2, [5, 9, 3], None, None, WIDTH), (12, 3, [2], None, None, WIDTH), (8, 8, None, 4, None, WIDTH)],
}


def layout_of(lengths: list[int] | None) -> Layout:
    return SharedPromptLayout(*SHARED) if lengths is None else PackedLayout(lengths)


def draw(tokens: int, case: tuple[Any, ...]) -> list[torch.Tensor]:
    """Queries, keys, values, and what comes back from above."""
    heads, kv_heads, *_, width = case
    g = torch.Generator().manual_seed(tokens)
    shapes = ((heads, WIDTH), (kv_heads, WIDTH), (kv_heads, width), (heads, width))
    return [torch.randn(tokens, *shape, generator=g, dtype=torch.float64) for shape in shapes]


def attend(layout: Layout, case: tuple[Any, ...], q: Any, k: Any, v: Any, upstream: Any) -> list[torch.Tensor]:
    """The output and the gradients of queries, keys and values."""
    *_, window, softcap, _ = case
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = layout.attend(0, *inputs, scale=SCALE, window=window, softcap=softcap)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream)]


def padded(column: torch.Tensor, sliced: SlicedLayout) -> torch.Tensor:
    rows = column.new_zeros(sliced.width, *column.shape[1:])
    mine = column[sliced.begin : sliced.begin + sliced.width]
    rows[: len(mine)] = mine
    return rows


def slices(rank: int, size: int) -> list[list[Any]]:
    ranks, found = SequenceRanks(size), []
    for case in CASES[size]:
        layout = layout_of(case[2])
        sliced = SlicedLayout(layout, ranks)
        columns = [padded(x, sliced) for x in draw(layout.position_ids.shape[1], case)]
        results = [sliced.position_ids[0], *attend(sliced, case, *columns)]
        found.append([x.numpy() for x in results])
    return found


@pytest.mark.parametrize("size", CASES)
def test_outputs_and_gradients_of_all_slices_are_those_of_the_whole(size: int) -> None:
    everyone = run_ranks(size, slices, size)
    for number, case in enumerate(CASES[size]):
        layout = layout_of(case[2])
        tokens = layout.position_ids.shape[1]
        whole = [layout.position_ids[0], *attend(layout, case, *draw(tokens, case))]
        for piece, expected in enumerate(whole):
            joined = torch.cat([torch.from_numpy(one[number][piece]) for one in everyone])
            assert len(joined) == -(-tokens // size) * size
            torch.testing.assert_close(joined[:tokens], expected, rtol=1e-9, atol=1e-9, msg=str((case, piece)))
            assert not joined[tokens:].any()


def whole(rank: int) -> tuple[Any, Any]:
    rows = torch.arange(7) if rank == 0 else torch.tensor([], dtype=torch.int64)
    mine = {"a": (rows * 1.0).requires_grad_(), "b": rows * 10.0}
    columns = SequenceRanks(2).whole(mine, rows, 7)
    (columns["a"] * torch.arange(7.0)).sum().backward()
    return {name: column.detach().numpy() for name, column in columns.items()}, mine["a"].grad.numpy()


def test_a_rank_may_compute_none_of_the_tokens_asked_for() -> None:
    results = run_ranks(2, whole)
    for columns, _ in results:
        assert columns["a"].tolist() == list(range(7)) and columns["b"].tolist() == [10.0 * i for i in range(7)]
    assert [len(gradient) for _, gradient in results] == [7, 0]
    assert results[0][1].tolist() == list(range(7))  # once, though both ranks computed the loss


def test_heads_that_ranks_cannot_share_evenly_are_refused() -> None:
    model = tiny("qwen3")
    check_shareable(model, 4, "KEY")
    check_shareable(model, 1, "KEY")
    with pytest.raises(UserError, match="KEY=3: Qwen3ForCausalLM has 4 attention heads.*divides 4"):
        check_shareable(model, 3, "KEY")


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "linear"])
def test_frequencies_that_depend_on_the_longest_sequence_are_refused(kind: str) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, **(factors if kind == "longrope" else {})}
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=rope))
    check_shareable(model, 1, "KEY")
    if kind == "linear":
        check_shareable(model, 2, "KEY")
    else:
        with pytest.raises(UserError, match=f"KEY=2: LlamaForCausalLM has rope_type={kind}"):
            check_shareable(model, 2, "KEY")
