import re

import numpy as np
import pytest

from hone.data import PromptDataset, read_rows
from hone.data.arithmetic import STEP_SHARES, STEPS, Problem, sample_distinct, write_arithmetic
from hone.errors import UserError
from hone.rewards import default_compute_score

GAINING, LOSING = {"buys", "finds"}, {"loses", "gives"}


def solve(question):
    """Read the sentences of a question and keep count."""
    opening, *steps, _ = re.split(r"(?<=[.?]) ", question)
    name, total = re.search(r"(\w+) has (\d+)", opening).groups()
    totals = [int(total)]
    for step in steps:
        subject, verb, *_ = step.split()
        amount = int(re.search(r"\d+", step)[0])
        assert subject == name
        assert verb in GAINING | LOSING
        totals.append(totals[-1] + (amount if verb in GAINING else -amount))
    return totals


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_total_on_the_way_is_what_the_words_say_and_lies_in_range(seed):
    for problem in sample_distinct(500, seed=seed):
        totals = solve(problem.question)
        assert totals == np.cumsum(problem.changes).tolist()
        assert all(0 <= total <= 20 for total in totals)
        assert 1 <= len(totals) - 1 <= 3


def test_worked_answers_show_each_running_total():
    assert Problem("", (5, 8, -2)).worked_answer() == "5+8=13 13-2=11 #### 11"
    assert Problem("", (5, 8)).worked_answer() == "5+8=13 #### 13"
    assert Problem("", (5, 8, -2)).bare_answer() == "#### 11"


def test_step_counts_are_as_frequent_as_they_should_be():
    steps = [len(problem.changes) - 1 for problem in sample_distinct(3000, seed=0)]
    shares = {count: steps.count(count) / 3000 for count in STEPS}
    assert shares == pytest.approx(dict(zip(STEPS, STEP_SHARES, strict=True)), abs=0.03)


def test_no_question_is_in_both_splits_or_twice_in_one(arithmetic_dir):
    train, test = (
        [row["prompt"][0]["content"] for row in read_rows(arithmetic_dir / f"{split}.parquet")]
        for split in ("train", "test")
    )
    assert (len(train), len(test)) == (64, 32)
    assert len({*train, *test}) == 96


def test_twenty_thousand_distinct_questions_exist():
    assert len({problem.question for problem in sample_distinct(20_200, seed=0)}) == 20_200


def test_rows_have_the_columns_of_the_schema_and_demonstrations_that_score(arithmetic_dir):
    for index, row in enumerate(read_rows(arithmetic_dir / "test.parquet")):
        assert list(row) == ["prompt", "data_source", "reward_model", "extra_info", "answer"]
        assert row["reward_model"]["style"] == "rule"
        truth = row["reward_model"]["ground_truth"]
        question = row["extra_info"]["question"]
        assert row["prompt"] == [{"role": "user", "content": question}]
        expected = {"index": index, "split": "test", "question": question, "steps": len(solve(question)) - 1}
        assert row["extra_info"] == expected
        assert int(truth) == solve(question)[-1]
        assert default_compute_score(row["data_source"], row["answer"], truth) == 1.0
        assert default_compute_score(row["data_source"], row["answer"], str(int(truth) + 1)) == 0.0


@pytest.mark.parametrize("size", [10, 50, 200])
def test_two_of_five_demonstrations_are_worked_out(tmp_path, size):
    train, _ = write_arithmetic(tmp_path, train_size=size, test_size=5)
    assert sum("=" in row["answer"] for row in read_rows(train)) == size * 2 // 5


def test_the_same_seed_writes_the_same_bytes_and_another_does_not(tmp_path):
    files = [
        write_arithmetic(tmp_path / name, train_size=30, test_size=5, seed=s)[0] for name, s in zip("abc", (4, 4, 5))
    ]
    first, again, other = (path.read_bytes() for path in files)
    assert first == again
    assert first != other


def test_prompts_are_short_with_the_tiny_tokenizer(arithmetic_dir, tiny_tokenizer):
    data = PromptDataset(arithmetic_dir / "train.parquet", tokenizer=tiny_tokenizer, max_prompt_length=45)
    lengths = [len(data[i].prompt_ids) for i in range(len(data))]
    assert 20 <= min(lengths) <= np.mean(lengths) <= 35


def test_sizes_out_of_range_name_the_option(tmp_path):
    with pytest.raises(UserError, match="--train-size=0"):
        write_arithmetic(tmp_path, train_size=0)
