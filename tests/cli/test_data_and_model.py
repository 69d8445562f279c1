import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hone.cli import data, model
from hone.data import read_rows
from hone.errors import UserError


def run(command, *argv):
    with pytest.raises(SystemExit) as exit_:
        command.run([str(argument) for argument in argv])
    return exit_.value.code


def test_arithmetic_data_and_a_tiny_model_are_made_from_the_command_line(tmp_path, capsys):
    options = ("--train-size", 40, "--test-size", 10, "--seed", 3)
    assert run(data, "arithmetic", "--output", tmp_path / "d", *options) == 0
    assert [len(read_rows(tmp_path / "d" / f"{split}.parquet")) for split in ("train", "test")] == [40, 10]
    sizes = ("--hidden", 64, "--layers", 1, "--heads", 2, "--kv-heads", 1, "--mlp", 64, "--vocab", 320)
    assert run(model, "tiny", "--output", tmp_path / "m", "--corpus", tmp_path / "d" / "train.parquet", *sizes) == 0
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "m").config
    assert (config.hidden_size, config.num_hidden_layers, config.num_key_value_heads) == (64, 1, 1)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "m")) == 320
    assert "train.parquet: 40 rows" in capsys.readouterr().out


def test_gsm8k_is_converted_from_the_command_line(tmp_path):
    (tmp_path / "g.jsonl").write_text(json.dumps({"question": "Q", "answer": "#### 4"}))
    assert (
        run(data, "gsm8k", "--input", tmp_path / "g.jsonl", "--output", tmp_path / "g.parquet", "--split", "test") == 0
    )
    assert read_rows(tmp_path / "g.parquet")[0]["extra_info"]["split"] == "test"


def test_usage_errors_exit_with_2_and_user_errors_reach_the_caller(tmp_path):
    assert run(data, "arithmetic") == 2
    assert run(model, "huge") == 2
    with pytest.raises(UserError, match=r"gone\.parquet does not exist"):
        model.run(["tiny", "--output", str(tmp_path), "--corpus", str(tmp_path / "gone.parquet")])
