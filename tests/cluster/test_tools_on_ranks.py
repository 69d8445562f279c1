"""Tools over several Ray ranks, in training and in generation: a model that learned its calls by heart makes them on
every rank, each of which has tools of its own, and the numbers and rows are those of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hone.cli.processes import processes
from hone.cluster import LocalExecutor
from hone.config import load
from hone.data.files import read_rows
from hone.data.products import Product, write_products
from hone.data.schema import to_row, write_parquet
from hone.errors import UserError
from hone.models.tiny import make_tiny_model
from hone.trainers.generate import generate
from hone.trainers.ppo import PPOTrainer
from tests.trainers.runs import ACTOR, ROLLOUT, Run, Stage, difference

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.slow
LEARNED = [Product("Tom", "pens", 34, 57), Product("Ann", "cups", 61, 83), Product("Tom", "cups", 99, 45)]
STEPS = 150


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=300_000_000)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A model that was fine-tuned on three questions until it calls the calculator for them."""
    directory = tmp_path_factory.mktemp("calling")
    write_products(directory / "data", train_size=50, test_size=5)  # and the file of tools
    rows = [
        {
            **to_row(
                product.question,
                data_source="arithmetic",
                ground_truth=str(product.total),
                answer=str(product.total),
                extra_info={"index": index},
            ),
            "messages": product.demonstration(calls=True),
        }
        for index, product in enumerate(LEARNED)
    ]
    for split in ("train", "test"):
        write_parquet(rows, directory / "data" / f"{split}.parquet")
    texts = [message["content"] for row in rows for message in row["messages"]]
    model = make_tiny_model(directory / "model", texts=texts, tools=True)
    stage = Stage(directory, model, directory / "data")
    keys = ("data.multiturn.enable=True", "data.train_batch_size=3", "optim.lr=3e-3", "trainer.total_epochs=1000")
    steps = (f"trainer.total_training_steps={STEPS}", f"trainer.save_freq={STEPS}", "trainer.test_freq=-1")
    stage.run_sft("sft", *keys, *steps)
    return Stage(directory, directory / "sft" / f"global_step_{STEPS}" / "model" / "huggingface", directory / "data")


def conversing(stage: Stage, section: str) -> list[str]:
    return [f"{section}.enable=True", f"{section}.tool_config_path={stage.data}/tools.yaml", f"{section}.max_turns=3"]


def generated(stage: Stage, name: str, ranks: int) -> list[dict[str, Any]]:
    argv = [
        f"model.path={stage.model}",
        f"data.path={stage.data}/test.parquet",
        f"data.output_path={stage.directory}/{name}",
        "data.n_samples=2",
        "rollout.temperature=0.5",
        "rollout.response_length=60",
        "rollout.dtype=float32",
        "trainer.device=cpu",
        f"trainer.n_gpus_per_node={ranks}",
        *conversing(stage, "rollout.multi_turn"),
    ]
    loaded = load("generate", argv)
    with processes(loaded.config) as executor:
        assert isinstance(executor, LocalExecutor) == (ranks == 1)
        generate(loaded, executor)
    return list(read_rows(stage.directory / name))


def test_generation_calls_tools_on_every_rank(calling: Stage) -> None:
    alone, together = (generated(calling, f"{ranks}.parquet", ranks) for ranks in (1, 2))
    assert together == alone
    for row, product in zip(together, LEARNED, strict=True):
        for text, found in zip(row["responses"], row["trajectories"], strict=True):
            assert found["num_turns"] == 2 and [turn["sampled"] for turn in found["turns"]] == [True, False, True]
            assert f'"expression":"{product.boxes}*{product.each}"' in found["turns"][0]["text"]
            assert str(product.total) in found["turns"][1]["text"] and f"#### {product.total}" in text


def trained(stage: Stage, name: str, ranks: int) -> Run:
    argv = stage.ppo(
        name,
        "data.train_batch_size=3",
        f"{ACTOR}.ppo_mini_batch_size=3",
        "data.max_response_length=60",
        f"{ROLLOUT}.n=4",
        f"{ROLLOUT}.temperature=1.0",
        f"{ACTOR}.optim.optimizer=SGD",
        f"{ACTOR}.optim.lr=0.1",
        "data.val_max_samples=-1",
        "trainer.test_freq=1",
        f"trainer.n_gpus_per_node={ranks}",
        "trainer.total_epochs=2",
        *conversing(stage, f"{ROLLOUT}.multi_turn"),
    )
    loaded = load("ppo", argv)
    with processes(loaded.config) as executor:
        PPOTrainer(loaded, executor).fit()
    return Run(stage.directory / name)


def test_training_calls_tools_on_every_rank(calling: Stage) -> None:
    alone, together = trained(calling, "alone", 1), trained(calling, "together", 2)
    assert difference(alone.weights(), together.weights()) < 1e-5
    for ours, theirs in zip(together.results(), alone.results(), strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    assert all(line["num_turns/mean"] > 1.5 for line in together.results())


def test_a_mistake_in_a_tool_on_a_rank_ends_the_run_with_its_message(calling: Stage, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from hone.agents import Tool\nfrom hone.errors import UserError\n\n\nclass Broken(Tool):\n"
        "    schema = {'name': 'calculator', 'parameters': {'properties': {'expression': {}}}}\n\n"
        "    def execute(self, state, arguments):\n        raise UserError('the service is gone')\n"
    )
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: 'mine.py:Broken'}]\n")
    for file in ("train.parquet", "test.parquet"):
        (tmp_path / file).write_bytes((calling.data / file).read_bytes())
    with pytest.raises(UserError, match="the service is gone"):
        generated(Stage(tmp_path, calling.model, tmp_path), "out.parquet", 2)
