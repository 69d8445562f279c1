"""Fixtures that tests of every part share; each is built once per session."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import build_arithmetic, build_tiny_model

SHOWN: dict[tuple[str, str], str] = {}  # (command, key) -> a collected test that shows its effect, slow ones included


def pytest_configure() -> None:
    """Ctrl-C arrives in tests and what they start, also where a shell has put the tests into the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("shows"):
            SHOWN.update(dict.fromkeys(mark.args, item.nodeid))


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with the tiny model and its tokenizer."""
    return build_tiny_model(tmp_path_factory.mktemp("tiny_model"))


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_model_dir: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model_dir)


@pytest.fixture(scope="session")
def arithmetic_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.parquet (64 rows) and test.parquet (32 rows) of the arithmetic data set."""
    return build_arithmetic(tmp_path_factory.mktemp("arithmetic"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """All of torch's work in the thread that asks for it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hf engine takes requests in, and lets others run, after every token."""
    monkeypatch.setattr("hone.rollout.hf.decode.PATIENCE", 0)
