"""The tiny model and the small data set that tests of every part share."""

from pathlib import Path

from hone.data.arithmetic import sample_distinct, write_arithmetic
from hone.models.tiny import make_tiny_model


def corpus_texts(count: int = 2000) -> list[str]:
    problems = sample_distinct(count, seed=0)
    return [text for problem in problems for text in (problem.question, problem.worked_answer(), problem.bare_answer())]


def build_tiny_model(directory: Path, *, seed: int = 0, hidden: int = 128, layers: int = 2) -> Path:
    """The standard tiny model: hidden 128, 2 layers, at most 512 tokens."""
    return make_tiny_model(directory, texts=corpus_texts(), hidden=hidden, layers=layers, seed=seed)


def build_arithmetic(directory: Path, *, train_size: int = 64, test_size: int = 32) -> Path:
    """A folder with train.parquet and test.parquet."""
    write_arithmetic(directory, train_size=train_size, test_size=test_size, seed=0)
    return directory
