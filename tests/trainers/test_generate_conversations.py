"""`hone generate` with tools, simulated users and agents of one's own: what converses in training converses there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hone.agents import sanity
from hone.cluster import LocalExecutor
from hone.config import load
from hone.data.files import read_rows
from hone.errors import UserError
from hone.models.tiny import make_tiny_model
from hone.trainers.evaluate import evaluate
from hone.trainers.generate import generate
from hone.workers import rollout as worker
from tests.agents.chat_models import Script
from tests.shows import shows
from tests.tiny import corpus_texts
from tests.trainers.runs import Stage

SECTION = "rollout.multi_turn"
OWN = """
from hone.agents import Interaction, Reply, Trajectory, register_agent


class Patient(Interaction):
    def create(self, start=0):
        return [None] * start

    def reply(self, state, messages):
        state.append(messages[-1]["content"])
        return Reply(f"and {len(state)}?", reward=0.25 * len(state), done=len(state) == 3)


def after_turn(sample, messages):
    return Reply(reward=10.0, done=len(messages) > 3)


@register_agent("twice")
class Twice:
    async def run(self, sample, llm):
        first = await llm.generate(sample.prompt_ids, max_tokens=3)
        ids = [*first.token_ids, 7]
        second = await llm.generate([*sample.prompt_ids, *ids], max_tokens=2)
        n = len(second.token_ids)
        return Trajectory(sample.prompt_ids, [*ids, *second.token_ids], [1] * (len(ids) - 1) + [0] + [1] * n,
                          [*first.logprobs, 0.0, *second.logprobs], [*first.versions, -1, *second.versions], "stop",
                          turn_rewards=[0.5])
"""


@pytest.fixture(scope="session")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that ends its turns soon, since many tokens are end tokens of its, and is told of tools."""
    path = make_tiny_model(tmp_path_factory.mktemp("talkative"), texts=corpus_texts(200), tools=True)
    settings = json.loads((path / "generation_config.json").read_text())
    template = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = template + tokenizer.chat_template
    tokenizer.save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": [0, *range(8, 200)]}))
    return path


@pytest.fixture
def talking(stage: Stage, talkative: Path) -> Stage:
    """Beside it, own.py, users.yaml and tools.yaml."""
    (stage.directory / "own.py").write_text(OWN)
    (stage.directory / "users.yaml").write_text("interaction: [{name: patient, class_name: own.py:Patient}]\n")
    (stage.directory / "tools.yaml").write_text("tools: [{class_name: calculator}]\n")
    return Stage(stage.directory, talkative, stage.data)


def argv(stage: Stage, name: str, *more: str) -> list[str]:
    return [
        f"model.path={stage.model}",
        f"data.path={stage.data}/test.parquet",
        f"data.output_path={stage.directory}/{name}",
        "data.max_samples=3",
        "data.n_samples=2",
        "rollout.response_length=100",
        "rollout.dtype=float32",
        "trainer.device=cpu",
        *more,
    ]


def generated(stage: Stage, name: str, *more: str) -> list[dict[str, Any]]:
    generate(load("generate", argv(stage, name, *more)), LocalExecutor())
    return list(read_rows(stage.directory / name))


def with_user(stage: Stage) -> list[str]:
    return [f"{SECTION}.enable=True", f"{SECTION}.interaction_config_path={stage.directory}/users.yaml"]


def trajectories(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [trajectory for row in rows for trajectory in row["trajectories"]]


@shows(f"{SECTION}.enable", f"{SECTION}.interaction_config_path", command="generate")
@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_users_questions_stand_between_the_turns_with_their_ids_and_masks(talking: Stage, ending: str) -> None:
    rows = generated(talking, f"out.{ending}", *with_user(talking))
    tokenizer = AutoTokenizer.from_pretrained(talking.model)
    assert len(rows) == 3 and all(len(row["trajectories"]) == len(row["responses"]) == 2 for row in rows)
    prompts = [tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)["input_ids"] for row in rows]
    assert [[found["prompt_ids"] for found in row["trajectories"]] for row in rows] == [[ids, ids] for ids in prompts]
    for found in trajectories(rows):
        assert found["num_turns"] == 3 and found["stop_reason"] == "stop"
        assert found["turn_rewards"] == [0.25, 0.5, 0.75]
        assert [turn["sampled"] for turn in found["turns"]] == [True, False, True, False, True]
        assert "and 1?" in found["turns"][1]["text"] and "and 2?" in found["turns"][3]["text"]
        pairs = zip(found["response_ids"], found["response_mask"], strict=True)
        runs = [[token for token, _ in run] for _, run in groupby(pairs, key=lambda pair: pair[1])]
        assert [tokenizer.decode(ids) for ids in runs] == [turn["text"] for turn in found["turns"]]
    texts = [text for row in rows for text in row["responses"]]
    for text, found in zip(texts, trajectories(rows), strict=True):
        assert text == tokenizer.decode(found["response_ids"], skip_special_tokens=True)


def test_a_file_of_conversations_is_scored_like_any_other(talking: Stage) -> None:
    rows = generated(talking, "out.parquet", *with_user(talking))
    (talking.directory / "said.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return float('and 2?' in solution_str)\n"
    )
    keys = [f"data.path={talking.directory}/out.parquet", f"custom_reward_function.path={talking.directory}/said.py"]
    metrics = evaluate(load("eval", keys))
    assert metrics["val-core/arithmetic/reward/mean@2"] == 1.0 and len(rows) == 3


def test_one_answer_is_all_that_is_written_where_nobody_converses(talking: Stage) -> None:
    assert "trajectories" not in generated(talking, "out.parquet")[0]


@shows(*(f"{SECTION}.{name}" for name in ("max_turns", "completion_callback", "tool_timeout")), command="generate")
def test_turns_have_their_limits_and_their_callback(talking: Stage) -> None:
    keys = with_user(talking)
    found = trajectories(generated(talking, "a.jsonl", *keys, f"{SECTION}.max_turns=2"))
    assert {(t["num_turns"], t["stop_reason"]) for t in found} == {(2, "length")}
    callback = f"{SECTION}.completion_callback={talking.directory}/own.py:after_turn"
    found = trajectories(generated(talking, "b.jsonl", *keys, callback))
    assert {tuple(t["turn_rewards"]) for t in found} == {(10.25, 10.0)}
    own = (talking.directory / "own.py").read_text().replace("    def reply", "    async def reply")
    slow = own.replace(
        "        state.append", "        import asyncio\n        await asyncio.sleep(9)\n        state.append"
    )
    (talking.directory / "own.py").write_text(slow)
    with pytest.raises(UserError, match="interaction 'patient': reply failed: TimeoutError: no answer within 0.2"):
        generated(talking, "c.jsonl", *keys, f"{SECTION}.tool_timeout=0.2")


@shows("rollout.agent.agent_loop_path", "rollout.agent.default_agent_loop", command="generate")
def test_an_agent_of_ones_own_answers_the_rows(talking: Stage) -> None:
    own = f"rollout.agent.agent_loop_path={talking.directory}/own.py"
    found = trajectories(generated(talking, "out.parquet", own, "rollout.agent.default_agent_loop=twice"))
    assert all([turn["sampled"] for turn in t["turns"]] == [True, False, True] for t in found)
    assert all(t["turn_rewards"] == [0.5] and t["response_mask"].index(0) <= 3 for t in found)
    found = trajectories(generated(talking, "plain.parquet", own))
    assert all(len(t["turns"]) == 1 for t in found)


@shows(f"{SECTION}.tool_config_path", command="generate")
def test_the_model_is_told_of_the_tools(talking: Stage) -> None:
    tools = [f"{SECTION}.enable=True", f"{SECTION}.tool_config_path={talking.directory}/tools.yaml"]
    shown, plain = (trajectories(generated(talking, "out.jsonl", *keys))[0] for keys in (tools, with_user(talking)))
    assert len(shown["prompt_ids"]) > len(plain["prompt_ids"])
    assert shown["num_turns"] == 1 and shown["stop_reason"] == "stop"


MISTAKES = {
    "a tool that there is not": (
        {"tools_kwargs": {"oracle": {"create_kwargs": {"x": 1}}}},
        "row 1: .*names the tool 'oracle'; there are none",
    ),
    "a user that there is not": (
        {"interaction_kwargs": {"name": "nobody"}},
        "row 1: .*name is 'nobody'; there are patient",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_row_with_a_mistake_is_named_before_a_model_is_loaded(
    talking: Stage, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_nothing(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is loaded before the mistake is found")

    monkeypatch.setattr(worker, "load_causal_lm", load_nothing)
    extra, message = MISTAKES[mistake]
    path = talking.directory / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": "1+1?", "extra_info": info}) + "\n" for info in ({}, extra)))
    with pytest.raises(UserError, match=message):
        generated(talking, "out.jsonl", *with_user(talking), f"data.path={path}")


def test_messages_name_the_keys_of_this_command(talking: Stage) -> None:
    path = talking.directory / "rows.jsonl"
    rows = [{"agent_name": "tools"}, {"agent_name": "magic"}]
    for row, words in zip(rows, (r"needs rollout\.multi_turn\.enable=True", r"named by rollout\.agent\.agent_l")):
        path.write_text(json.dumps({"prompt": "1+1?", **row}))
        with pytest.raises(UserError, match=words):
            generated(talking, "out.jsonl", f"data.path={path}")
    (talking.directory / "users.yaml").write_text("interaction: 5")
    with pytest.raises(UserError, match=r"^rollout\.multi_turn\.interaction_config_path=.*users\.yaml: expected"):
        generated(talking, "out.jsonl", *with_user(talking))


ONE = ("data.max_samples=1", "data.n_samples=1", "rollout.response_length=400")
CALL = '<tool_call>{"name":"calculator","arguments":{"expression":"EXPRESSION"}}</tool_call>'


@pytest.fixture
def played(talking: Stage, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """The trajectory of a model that says the given texts, with the calculator to call."""
    tokenizer = AutoTokenizer.from_pretrained(talking.model)

    def play(*turns: str, keys: Sequence[str] = ()) -> dict[str, Any]:
        engine = Script(tokenizer, *(f"{turn}<|end|>" for turn in turns))
        monkeypatch.setattr(worker, "generation_engine", lambda *_: engine)
        on = [f"{SECTION}.enable=True", f"{SECTION}.tool_config_path={talking.directory}/tools.yaml"]
        (row,) = generated(talking, "out.jsonl", *ONE, *on, *keys)
        return row["trajectories"][0]

    return play


@shows(f"{SECTION}.format", command="generate")
def test_a_call_in_the_format_of_the_key_is_run(played: Callable[..., dict[str, Any]]) -> None:
    call = CALL.replace("EXPRESSION", "17*23")
    assert "391" in played(call, "so")["turns"][1]["text"]
    llama = '{"name": "calculator", "parameters": {"expression": "17*23"}}'
    assert "391" in played(llama, "so", keys=[f"{SECTION}.format=llama3_json"])["turns"][1]["text"]
    assert played(llama, "so")["num_turns"] == 1


@shows(
    *(
        f"{SECTION}.{name}"
        for name in ("max_parallel_calls", "max_tool_response_length", "tool_response_truncate_side")
    ),
    command="generate",
)
def test_calls_and_their_answers_have_their_limits(played: Callable[..., dict[str, Any]]) -> None:
    turns = CALL.replace("EXPRESSION", "10**9") * 2, "so"
    keys = ["max_parallel_calls=1", "max_tool_response_length=2", "tool_response_truncate_side=left"]
    answers = played(*turns, keys=[f"{SECTION}.{key}" for key in keys])["turns"][1]["text"]
    assert "...(8 characters cut)...00" in answers and "error: not run: a turn may call 1 tools" in answers


@shows(f"{SECTION}.use_inference_chat_template", f"{SECTION}.enable_tokenization_sanity_check", command="generate")
def test_a_call_that_the_template_writes_otherwise_is_said_or_made_context(
    played: Callable[..., dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    turns = CALL.replace("EXPRESSION", "1+1").replace(":", ": "), "so"

    def warned(*keys: str) -> tuple[bool, dict[str, Any]]:
        sanity._said.clear()
        caplog.clear()
        found = played(*turns, keys=keys)
        return "the text part after" in caplog.text, found

    said, found = warned()
    assert said and found["response_mask"][0] == 1
    said, found = warned(f"{SECTION}.enable_tokenization_sanity_check=False")
    assert not said and found["response_mask"][0] == 1
    said, found = warned(f"{SECTION}.use_inference_chat_template=True")
    assert not said and found["response_mask"][0] == 0 and '"name":"calculator"' in found["turns"][0]["text"]
