"""A class of the user's in place of an engine: whatever is wrong with it is one message that says where and what."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path

import pytest
import torch

from hone.config.schema.rollout import RolloutConfig
from hone.errors import UserError
from hone.rollout.custom import SECTION, CustomServer, ServerSettings, server_class
from hone.rollout.interface import Sampling

WHOLE = """
    from hone.rollout.interface import Completion

    class Mine:
        def __init__(self, settings):
            self.settings = settings
        async def generate(self, prompt_ids, sampling):
            return Completion([3, 4], [-0.5, 0.0], "length", [0, 0])
        async def update_weights(self, weights, version):
            raise KeyError("no such layer")
        async def sleep(self): ...
        async def wake(self): ...
"""


def written(folder: Path, code: str) -> str:
    file = folder / "mine.py"
    file.write_text(textwrap.dedent(code))
    return str(file)


def settings() -> ServerSettings:
    return ServerSettings(
        model_path="m",
        tokenizer=None,  # type: ignore[arg-type]
        vocabulary=10,
        eos_token_ids=frozenset([1]),
        max_model_len=16,
        dtype=torch.float32,
        device=torch.device("cpu"),
        seed=0,
        rollout=RolloutConfig.model_construct(),
    )


def generate(folder: Path, code: str):
    server = CustomServer(written(folder, code), "Mine", settings())
    return asyncio.run(server.generate([2, 5], Sampling(max_tokens=2)))


def test_what_it_answers_is_handed_on(tmp_path):
    completion = generate(tmp_path, WHOLE)
    assert completion.token_ids == [3, 4] and completion.logprobs == [-0.5, 0.0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("class Mine", "class Other", "defines Other. Name one of its own"),
        ("class Mine:", "def Mine():\n        pass\n    class Other:", "defines Other. Name one of its own"),
        ("async def wake(self): ...", "", "its method wake is missing"),
        ("async def sleep", "def sleep", "its method sleep is not `async def`"),
        ("from hone", "import no_such_package; from hone", "fails when it is loaded: ModuleNotFoundError"),
    ],
)
def test_a_class_that_cannot_serve_is_found_before_a_run(tmp_path, old, new, said):
    with pytest.raises(UserError, match=said) as caught:
        server_class(written(tmp_path, WHOLE.replace(old, new)), "Mine")
    assert SECTION in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=rf"{SECTION}.path=.*no_such_file.py: there is no such file"):
        server_class(f"{tmp_path}/no_such_file.py", "Mine")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("[3, 4]", r"returned \[3, 4\]: expected a hone.rollout.interface.Completion"),
        ('Completion([3, 4], [-0.5], "length", [0, 0])', "2 token_ids, 1 logprobs and 2 versions"),
        ('Completion([3, 4], [-0.5, -1.0], "length", [0])', "2 token_ids, 2 logprobs and 1 versions"),
        ('Completion([], [], "stop", [])', "0 tokens: expected 1 to max_tokens=2"),
        ('Completion([3, 4, 5], [-0.5] * 3, "length", [0] * 3)', "3 tokens: expected 1 to max_tokens=2"),
        ('Completion([3, 10], [-0.5, -1.0], "length", [0, 0])', "the token id 10: expected 0 to 9"),
        ('Completion([3, -1], [-0.5, -1.0], "length", [0, 0])', "the token id -1: expected 0 to 9"),
        ('Completion([3, 4], [-0.5, float("nan")], "length", [0, 0])', "the log-prob nan: expected a finite number"),
        ('Completion([3, 4], [-0.5, 0.5], "length", [0, 0])', "the log-prob 0.5: expected a finite number"),
        ('Completion([3, 4], [-0.5, None], "length", [0, 0])', "the log-prob None: expected a finite number"),
        ('Completion([3, 4], [-0.5, -1.0], "length", [None, 0])', "the versions"),
        ('Completion([3, 4], [-0.5, -1.0], "abort", [0, 0])', "the stop_reason 'abort'"),
        ("1 / 0", r"generate failed: ZeroDivisionError: division by zero .*mine.py, line 8"),
    ],
)
def test_a_wrong_answer_is_said_with_what_was_expected(tmp_path, answer, said):
    with pytest.raises(UserError, match=said) as caught:
        generate(tmp_path, WHOLE.replace('Completion([3, 4], [-0.5, 0.0], "length", [0, 0])', answer))
    assert f"{SECTION}.name=Mine" in str(caught.value)


def test_what_it_raises_elsewhere_is_one_message_with_the_line(tmp_path):
    server = CustomServer(written(tmp_path, WHOLE), "Mine", settings())
    with pytest.raises(UserError, match=r"update_weights failed: KeyError: 'no such layer' .*mine.py, line 10"):
        asyncio.run(server.update_weights([], 1))
    with pytest.raises(UserError, match="could not be made: ZeroDivisionError"):
        CustomServer(written(tmp_path, WHOLE.replace("self.settings = settings", "1 / 0")), "Mine", settings())


def test_a_request_that_can_never_fit_is_refused_before_the_server_sees_it(tmp_path):
    server = CustomServer(written(tmp_path, WHOLE), "Mine", settings())
    with pytest.raises(UserError, match="max_model_len is 16"):
        asyncio.run(server.generate([2] * 10, Sampling(max_tokens=7)))
