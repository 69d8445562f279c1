"""Whole runs with engines that hone does not have itself: a class of the user's, and SGLang's adapter on a stand-in."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from hone.cluster import LocalExecutor
from hone.config import load
from hone.errors import UserError
from tests.rollout import fake_sglang
from tests.shows import shows
from tests.trainers.runs import ROLLOUT, Stage, difference

SERVER = f"{ROLLOUT}.agent.custom_async_server"
DOCS = (Path(__file__).parents[2] / "docs" / "rollout.md").read_text()
SGLANG = (
    f"{ROLLOUT}.name=sglang",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    f"{ROLLOUT}.verify_weights=always",
    f"{ROLLOUT}.temperature=0.8",
)


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The file that docs/rollout.md shows."""
    block = re.search(r"^ {4}from transformers import AutoModelForCausalLM.*?(?=^\S)", DOCS, flags=re.M | re.S)
    assert block
    file = tmp_path / "server.py"
    file.write_text(textwrap.dedent(block[0]))
    return file


def options(file: Path) -> list[str]:
    return [f"{SERVER}.path={file}", f"{SERVER}.name=MyServer", f"{ROLLOUT}.verify_weights=always"]


@shows(f"{SERVER}.path", f"{SERVER}.name")
def test_the_server_shown_samples_and_trains_as_hones_own_engine_does(stage: Stage, shown: Path) -> None:
    own, theirs = stage.run_ppo("own"), stage.run_ppo("theirs", *options(shown))
    for one, other in zip(own.results(), theirs.results(), strict=True):
        assert one.keys() <= other.keys()
        assert {k: other[k] for k in one} == pytest.approx(one, rel=1e-3, abs=1e-5)
    assert difference(own.weights(), theirs.weights()) < 1e-5


def test_a_server_that_leaves_out_new_weights_ends_the_run(stage: Stage, shown: Path) -> None:
    shown.write_text(shown.read_text().replace("await self.engine.update_weights(weights, version)", "pass"))
    with pytest.raises(UserError, match=r"custom_async_server does not have the trainer's weights after step 1"):
        stage.run_ppo("run", *options(shown))


def test_two_steps_train_on_exactly_what_sglang_sampled(stage: Stage) -> None:
    with fake_sglang.installed() as engine:
        run = stage.run_ppo("run", *SGLANG, f"{ROLLOUT}.top_k=20", "trainer.test_freq=1")
        (made,) = engine.made
    assert [line["training/global_step"] for line in run.lines()] == [1, 2]
    assert made.arguments["load_format"] == "dummy"
    sampled = [call["sampling_params"] for call in made.calls if "custom_logit_processor" in call]
    assert sampled and all(params["custom_params"]["top_k"] == 20 for params in sampled)
    assert any(key.startswith("val") for key in run.lines()[-1])


def test_probabilities_of_what_sglang_sampled_are_the_trainers(stage: Stage) -> None:
    with fake_sglang.installed():
        run = stage.run_ppo("run", *SGLANG)
    for line in run.lines():
        assert line["training/rollout_probs_diff_max"] < 1e-4 and line["actor/grad_norm"] > 0


def test_a_hand_over_after_which_sglang_keeps_old_keys_ends_the_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_sglang.installed():
        from hone.rollout.sglang.engine import SGLangEngine

        async def nothing(self) -> None: ...

        monkeypatch.setattr(SGLangEngine, "_forget", nothing)
        with pytest.raises(UserError, match=r"rollout\.name=sglang does not have the trainer's weights after step 0"):
            stage.run_ppo("run", *SGLANG)


def test_generation_of_a_file_of_prompts_equals_that_of_hones_own_engine(stage: Stage) -> None:
    from hone.trainers.generate import generate

    found = {}
    with fake_sglang.installed():
        for name in ("hf", "sglang"):
            output = stage.directory / f"{name}.json"
            argv = [
                f"data.path={stage.data}/test.parquet", f"model.path={stage.model}", f"data.output_path={output}",
                "data.max_samples=4", "rollout.prompt_length=100", "rollout.response_length=12",
                "rollout.do_sample=False", f"rollout.name={name}", "trainer.device=cpu", "rollout.dtype=float32",
            ]  # fmt: skip
            generate(load("generate", argv), LocalExecutor())
            found[name] = [row["responses"] for row in json.loads(output.read_text())]
    assert found["sglang"] == found["hf"]
