"""Fixtures that tests of every part share; each is built once per session."""

from pathlib import Path

import pytest

from tests.tiny import build_arithmetic, build_tiny_model

SHOWN: dict[tuple[str, str], str] = {}  # (command, key) -> a collected test that shows its effect, slow ones included


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
