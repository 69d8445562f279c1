import pytest

from hone.errors import UserError
from hone.user_code import load_function, run_file


def write(tmp_path, text):
    path = tmp_path / "my_reward.py"
    path.write_text(text)
    return path


def test_a_file_that_exits_when_it_is_loaded_is_an_error(tmp_path):
    path = tmp_path / "leaving.py"
    path.write_text("exit(0)\n")
    with pytest.raises(UserError, match=r"a\.key=.*leaving\.py fails when it is loaded: SystemExit: 0 .*line 1"):
        run_file(path, key="a.key")


def test_a_function_is_loaded_by_path_and_name(tmp_path):
    path = write(tmp_path, "def compute_score(a):\n    return a + 1\ndef other(a):\n    return a + 2\n")
    assert load_function(path)(1) == 2
    assert load_function(str(path), "other")(1) == 3


def test_a_file_with_a_dataclass_loads(tmp_path):
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 3\n"
    )
    assert load_function(write(tmp_path, text + "def compute_score():\n    return A().x\n"))() == 3


def test_the_home_directory_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "def compute_score():\n    return 4\n")
    assert load_function("~/my_reward.py")() == 4


def test_a_missing_file_names_the_path_key(tmp_path):
    with pytest.raises(UserError, match=r"custom_reward_function\.path=.*nowhere\.py: there is no such file"):
        load_function(tmp_path / "nowhere.py")


def test_a_missing_name_lists_what_the_file_defines_itself(tmp_path):
    path = write(tmp_path, "from math import sqrt\nfrom os.path import join\ndef score():\n    return 1\nlimit = 3\n")
    with pytest.raises(UserError, match=r"custom_reward_function\.name=compute_score: .*my_reward\.py defines score\."):
        load_function(path)
    with pytest.raises(UserError, match="defines score"):
        load_function(path, "limit")


def test_a_file_that_fails_to_load_names_the_failure(tmp_path):
    with pytest.raises(UserError, match=r"custom_reward_function\.path=.*ModuleNotFoundError: No module named 'nope'"):
        load_function(write(tmp_path, "import nope\n"))
    with pytest.raises(UserError, match="SyntaxError"):
        load_function(write(tmp_path, "def f(:\n"))
