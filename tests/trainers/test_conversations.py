"""Conversations in whole runs: a simulated user answers a random model, whose turns and rewards are trained on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from hone.batch import Batch
from hone.errors import UserError
from hone.models.tiny import make_tiny_model
from tests.shows import shows
from tests.tiny import corpus_texts
from tests.trainers.runs import ROLLOUT, Run, Stage, difference, same_weights

SECTION = f"{ROLLOUT}.multi_turn"
USER = """
from hone.agents import Interaction, Reply


class Patient(Interaction):
    def create(self):
        return []

    def reply(self, state, messages):
        state.append(messages[-1]["content"])
        return Reply(f"and {len(state)}?", reward=0.25 * len(state), done=len(state) == 3)
"""


@pytest.fixture(scope="session")
def tools_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a template that has turns for tools."""
    return make_tiny_model(tmp_path_factory.mktemp("tools_model"), texts=corpus_texts(200), tools=True)


@pytest.fixture
def talking(stage: Stage, tools_model: Path) -> Stage:
    """Beside it, users.yaml and tools.yaml."""
    (stage.directory / "users.py").write_text(USER)
    (stage.directory / "users.yaml").write_text("interaction: [{name: patient, class_name: users.py:Patient}]\n")
    (stage.directory / "tools.yaml").write_text("tools: [{class_name: calculator}]\n")
    return Stage(stage.directory, tools_model, stage.data)


def run(stage: Stage, name: str, *more: str, estimator: str = "grpo") -> Run:
    stops = ",".join(str(token) for token in range(8, 200))  # a random model says many of them soon
    return stage.run_ppo(
        name,
        f"{SECTION}.enable=True",
        f"{SECTION}.interaction_config_path={stage.directory}/users.yaml",
        f"{ROLLOUT}.stop_token_ids=[{stops}]",
        "data.max_response_length=100",
        *more,
        estimator=estimator,
    )


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
@shows(f"{SECTION}.interaction_config_path")
def test_a_run_trains_on_turns_that_a_user_answers(talking: Stage, estimator: str, updates: list[Batch]) -> None:
    found = run(talking, "run", estimator=estimator)
    lines = found.results()
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert all(line["num_turns/max"] == 3 for line in lines)
    assert all(line["critic/turn_rewards/max"] == 0.25 + 0.5 + 0.75 for line in lines)
    batch = updates[0]
    inserted = (batch["response_mask"] == 0) & (batch["versions"] == -1)
    assert torch.equal(batch["response_mask"] == 1, batch["versions"] >= 0) and bool(inserted.any())
    # Sampled tokens have the log-probs that the trainer computes for them: the model saw what is trained on.
    mask = batch["response_mask"].bool()
    assert torch.allclose(batch["rollout_logprobs"][mask], batch["old_logprobs"][mask], atol=1e-4)


def test_a_run_with_conversations_is_a_function_of_its_seed(talking: Stage) -> None:
    runs = [run(talking, name, *more) for name, more in (("a", ()), ("b", ()), ("c", ("trainer.seed=7",)))]
    assert same_weights(runs[0].weights(), runs[1].weights())
    assert difference(runs[0].weights(), runs[2].weights()) > 0


@shows(f"{SECTION}.max_turns")
def test_the_most_turns_of_a_run(talking: Stage) -> None:
    line = run(talking, "run", f"{SECTION}.max_turns=2").results()[0]
    assert line["num_turns/max"] == 2 and line["critic/turn_rewards/max"] == 0.75


@shows(f"{SECTION}.tool_config_path")
def test_tools_stand_beside_a_user_in_a_run(talking: Stage, tiny_model_dir: Path) -> None:
    tools = f"{SECTION}.tool_config_path={talking.directory}/tools.yaml"
    assert run(talking, "run", tools).results()[0]["num_turns/max"] == 3
    with pytest.raises(UserError, match="no place for a message of the role tool"):
        run(Stage(talking.directory, tiny_model_dir, talking.data), "plain", tools)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"tools_kwargs": {"oracle": {"create_kwargs": {"x": 1}}}}, "row 1: .*names the tool 'oracle'; there are none"),
        ({"interaction_kwargs": {"name": "nobody"}}, "row 1: .*name is 'nobody'; there are patient"),
    ],
)
def test_a_row_for_tools_that_there_are_not_is_named_before_a_model_is_loaded(
    talking: Stage, extra: dict, message: str
) -> None:
    rows = [{"prompt": "1+1?", "data_source": "a", "extra_info": info} for info in ({}, extra)]
    path = talking.directory / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=message):
        run(talking, "run", f"data.train_files={path}", "data.train_batch_size=2")
