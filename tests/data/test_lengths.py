import logging

import numpy as np
import pytest

from hone.data import lengths as module
from hone.data.chat import render
from hone.data.lengths import measure, refuse_longer
from hone.errors import UserError


def conversations(texts):
    return [([{"role": "user", "content": text}], f"row {index}") for index, text in enumerate(texts)]


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 3)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("prompt", [False, True])
def test_a_length_is_the_number_of_tokens_that_rendering_gives(tiny_tokenizer, small_chunks, count, prompt):
    given = conversations("cups " * (7 * n % 5) + "é\u4e2d" for n in range(count))
    expected = [len(render(tiny_tokenizer, m, add_generation_prompt=prompt, where=w)) for m, w in given]
    assert measure(tiny_tokenizer, iter(given), total=count, add_generation_prompt=prompt).tolist() == expected


@pytest.mark.parametrize("wrong", [{"role": "wizard", "content": "hi"}, {"role": "user", "content": "\ud800"}])
def test_a_row_that_cannot_be_rendered_is_named_although_rows_are_rendered_together(
    tiny_tokenizer, small_chunks, wrong
):
    given = conversations(["cups"] * 8)
    given[4] = ([wrong], "row 4")
    with pytest.raises(UserError, match="^row 4: the chat template refuses"):
        measure(tiny_tokenizer, given, total=8, add_generation_prompt=True)


@pytest.mark.slow
def test_several_processes_measure_the_same_and_name_the_same_row(tiny_tokenizer, small_chunks):
    given = conversations("cups " * (n % 17) for n in range(40))
    alone, together = (
        measure(tiny_tokenizer, given, total=40, add_generation_prompt=True, workers=workers) for workers in (1, 2)
    )
    assert np.array_equal(alone, together)
    given[33] = ([{"role": "wizard", "content": "hi"}], "row 33")
    with pytest.raises(UserError, match="^row 33: "):
        measure(tiny_tokenizer, given, total=40, add_generation_prompt=True, workers=2)


def test_a_long_measurement_is_announced(tiny_tokenizer, monkeypatch, caplog):
    monkeypatch.setattr(module, "MANY", 5)
    with caplog.at_level(logging.INFO, logger="hone.data.lengths"):
        measure(tiny_tokenizer, conversations(["cups"] * 4), total=4, add_generation_prompt=True)
        assert not caplog.text
        measure(tiny_tokenizer, conversations(["cups"] * 5), total=5, add_generation_prompt=True)
    assert "measuring the lengths of 5 rows" in caplog.text


def test_rows_that_are_too_long_are_counted_and_the_first_is_named():
    def refuse(*lengths):
        refuse_longer(
            np.array(lengths), 5, key="data.max_length", what="row", where=lambda i: f"a.jsonl, row {i}", remedy="Cut."
        )

    refuse(1, 5)
    with pytest.raises(
        UserError, match=r"^a\.jsonl, row 1: the rendered row has 6 tokens, more than data\.max_length=5\. Cut\.$"
    ):
        refuse(5, 6)
    with pytest.raises(
        UserError, match=r"row 0: .* 9 tokens.*2 of 3 rows are too long, the longest has 11 tokens\. Cut\.$"
    ):
        refuse(9, 5, 11)
