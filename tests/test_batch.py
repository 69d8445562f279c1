"""The ragged container: what comes out equals what plain Python lists would give."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.batch import Batch

lengths_lists = st.lists(st.integers(0, 6), min_size=1, max_size=7)


def make(lengths: list[int]) -> tuple[Batch, list[list[int]]]:
    sequences = [[100 * i + t for t in range(n)] for i, n in enumerate(lengths)]
    tokens = {"ids": [torch.tensor(s, dtype=torch.int64) for s in sequences]}
    tokens["x"] = [torch.tensor(s, dtype=torch.float32) / 7 for s in sequences]
    rows = {"n": torch.tensor(lengths), "name": [f"r{i}" for i in range(len(lengths))]}
    return Batch.from_sequences(tokens, rows), sequences


def as_lists(batch: Batch) -> list[list[int]]:
    return [batch["ids"][a:b].tolist() for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]


@settings(deadline=None)
@given(lengths_lists, st.data())
def test_selecting_rows_equals_indexing_a_list(lengths, data):
    batch, sequences = make(lengths)
    index = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=9))
    chosen = batch.select(index)
    assert as_lists(chosen) == [sequences[i] for i in index]
    assert list(chosen["name"]) == [f"r{i}" for i in index]
    assert chosen["n"].tolist() == [lengths[i] for i in index]


@settings(deadline=None)
@given(lengths_lists, st.sampled_from(["left", "right"]), st.integers(0, 3))
def test_padding_and_its_inverse_give_the_column_back(lengths, side, extra):
    batch, sequences = make(lengths)
    width = max(lengths) + extra
    matrix = batch.padded("ids", side=side, length=width, fill=-1)
    for row, s in zip(matrix.tolist(), sequences, strict=True):
        pad = [-1] * (width - len(s))
        assert row == (pad + s if side == "left" else s + pad)
    assert torch.equal(batch.ragged(matrix, side=side), batch["ids"])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6))
def test_a_rectangle_of_responses_leaves_out_the_prompts(pairs):
    batch, sequences = make([p + r for p, r in pairs])
    starts = torch.tensor([p for p, _ in pairs])
    matrix = batch.padded("ids", starts=starts, fill=-1)
    for row, s, (p, _) in zip(matrix.tolist(), sequences, pairs, strict=True):
        assert [v for v in row if v != -1] == s[p:]
    back = batch.ragged(matrix, starts=starts, fill=-5)
    expected = [v if t >= p else -5 for s, (p, _) in zip(sequences, pairs, strict=True) for t, v in enumerate(s)]
    assert back.tolist() == expected


def test_splitting_and_concatenating_are_inverse():
    batch, sequences = make([3, 0, 2, 5, 1])
    parts = batch.split([2, 0, 3])
    assert [len(p) for p in parts] == [2, 0, 3]
    assert as_lists(Batch.concat(parts)) == sequences
    assert list(Batch.concat(parts)["name"]) == list(batch["name"])


def test_repeating_keeps_the_copies_of_a_row_together():
    batch, sequences = make([2, 1])
    assert as_lists(batch.repeat(2)) == [sequences[0], sequences[0], sequences[1], sequences[1]]


def test_bytes_give_the_same_batch_back_also_in_bfloat16():
    batch, _ = make([2, 3])
    batch = batch.with_tokens(h=torch.randn(5, 4).bfloat16()).with_rows(obj=[{"a": 1}, None])
    back = Batch.from_bytes(batch.to_bytes())
    assert torch.equal(back.offsets, batch.offsets)
    assert all(torch.equal(back[k], batch[k]) for k in ("ids", "x", "h", "n"))
    assert list(back["obj"]) == [{"a": 1}, None]


def test_a_column_of_the_wrong_length_is_refused_by_name():
    batch, _ = make([2, 3])
    with pytest.raises(ValueError, match="'y' has 4 entries"):
        batch.with_tokens(y=torch.zeros(4))
    with pytest.raises(ValueError, match="'z' has 3 entries"):
        batch.with_rows(z=np.zeros(3))
    with pytest.raises(KeyError, match="no column 'missing'"):
        batch["missing"]
    with pytest.raises(ValueError, match="cannot hold a sequence of 3 tokens"):
        batch.padded("ids", length=2)


def test_an_operation_leaves_its_argument_as_it_was():
    batch, sequences = make([2, 3])
    batch.with_tokens(extra=torch.zeros(5))
    batch.with_rows(extra=torch.zeros(2))
    assert "extra" not in batch
    assert as_lists(batch) == sequences
