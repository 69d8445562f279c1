import json

import pytest

from hone.data import read_rows
from hone.data.gsm8k import convert_gsm8k
from hone.errors import UserError


def write(path, answers):
    path.write_text("\n".join(json.dumps({"question": f"Q{i}?", "answer": a}) for i, a in enumerate(answers)))
    return path


def test_a_row_is_converted_to_the_schema_with_the_last_marked_number_as_truth(tmp_path):
    source = write(tmp_path / "gsm8k.jsonl", ["2+3=<<2+3=5>>5\n#### 5", "No: #### 1\nYes:\n#### 1,200"])
    assert convert_gsm8k(source, tmp_path / "out" / "train.parquet", split="train") == 2
    first, second = read_rows(tmp_path / "out" / "train.parquet")
    content = 'Q0? Let\'s think step by step and output the final answer after "####".'
    assert first == {
        "prompt": [{"role": "user", "content": content}],
        "data_source": "openai/gsm8k",
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"index": 0, "split": "train", "question": "Q0?"},
        "answer": "2+3=<<2+3=5>>5\n#### 5",
    }
    assert second["reward_model"]["ground_truth"] == "1200"


def test_an_answer_without_a_marked_number_names_its_row(tmp_path):
    with pytest.raises(UserError, match=r"gsm8k\.jsonl, row 1: .*####"):
        convert_gsm8k(write(tmp_path / "gsm8k.jsonl", ["#### 5", "five"]), tmp_path / "o.parquet", split="train")


def test_a_file_without_the_columns_of_gsm8k_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}')
    with pytest.raises(UserError, match="no column 'question'"):
        convert_gsm8k(tmp_path / "a.jsonl", tmp_path / "o.parquet", split="train")


@pytest.mark.parametrize("row", [{"question": "Q?"}, {"answer": "#### 5"}, {"question": "Q?", "answer": 5}])
def test_a_row_without_a_question_or_an_answer_in_words_is_named(tmp_path, row):
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in ({"question": "Q?", "answer": "#### 5"}, row)))
    with pytest.raises(UserError, match=r"gsm8k\.jsonl, row 1.*column '(question|answer)'"):
        convert_gsm8k(path, tmp_path / "o.parquet", split="train")
