import time

import pytest

from hone.rewards.gsm8k import compute_score, last_answer


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("so #### 18", "18"),
        ("#### $18", "18"),
        ("#### 1,234", "1234"),
        ("#### 1234", "1,234"),
        ("#### 18.00", "18"),
        ("#### -3", "-3"),
        ("#### $-3", "-3"),
        ("#### -$3", "-3"),
        ("#### - $ 3", "-3"),
        ("####\n\n- 3", "-3"),
        ("####18", "18"),
        ("####\n18", "18"),
        ("#### 18.", "18"),
        ("#### 18, I think", "18"),
        ("#### 18 dollars and more text after it", "18"),
        ("#### 18<|end|>", "18"),
        ("#### .5", "0.5"),
        ("#### 1,234,567.50", "1234567.5"),
        ("#### 5 no, wait\n#### 18", "18"),
        ("#### 18\n#### not a number", "18"),
        ("#### 18", 18),
        ("#### 18", 18.0),
        ("#### 18", "work\n#### 18"),
    ],
)
def test_the_last_marked_number_counts_whatever_its_form(text, truth):
    assert compute_score("gsm8k", text, truth) == 1.0


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("18", "18"),
        ("", "18"),
        ("### 18", "18"),
        ("#### 18\n#### 5", "18"),
        ("#### 3", "-3"),
        ("#### -3", "3"),
        ("#### 18.5", "18"),
        ("#### 180", "18"),
        ("#### 18/2", "18"),
        ("#### 18 - 9 = 9", "18"),
        ("#### 1,23", "1"),
        ("#### 1.2.3", "1.2"),
        ("#### eighteen", "18"),
    ],
)
def test_other_numbers_and_texts_without_the_mark_score_nothing(text, truth):
    assert compute_score("gsm8k", text, truth) == 0.0


def test_a_text_without_an_answer_has_none():
    assert last_answer("no mark 5") is None


def test_a_ground_truth_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="ground truth 'many'"):
        compute_score("gsm8k", "#### 5", "many")


@pytest.mark.parametrize("part", [" ", "\n", "#", "#### ", "#### -", "1", "1,", "1,111", "1.", "- ", "$ ", "1 "])
def test_a_text_of_any_length_is_read_at_once(part):
    start = time.process_time()
    last_answer("####" + part * 50_000 + "x")
    assert time.process_time() - start < 2
