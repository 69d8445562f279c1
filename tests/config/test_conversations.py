"""Conversations in a configuration: who answers the model, and keys that rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config import ConfigError, load

ROLLOUT = "actor_rollout_ref.rollout"
SECTION = f"{ROLLOUT}.multi_turn"


@pytest.fixture
def tools(tmp_path: Path) -> list[str]:
    """Overrides that switch conversations on."""
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: calculator}]\n")
    return [f"{SECTION}.enable=True", f"{SECTION}.tool_config_path={tmp_path}/tools.yaml"]


def problems(runnable: dict[str, list[str]], *argv: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load("ppo", [*runnable["ppo"], *argv])
    return {problem.key: str(problem) for problem in caught.value.problems}


def test_conversations_have_their_own_agent_unless_another_is_named(
    runnable: dict[str, list[str]], tools: list[str]
) -> None:
    def agent(*argv: str) -> str:
        return load("ppo", [*runnable["ppo"], *argv]).config.actor_rollout_ref.rollout.agent.default_agent_loop

    assert agent() == "single_turn"
    assert agent(*tools) == "tools"
    assert agent(*tools, f"{ROLLOUT}.agent.default_agent_loop=single_turn") == "single_turn"


def test_somebody_must_answer(runnable: dict[str, list[str]]) -> None:
    found = problems(runnable, f"{SECTION}.enable=True")
    assert "nobody answers the model" in found[f"{SECTION}.enable"]


def test_the_agent_of_conversations_needs_them(runnable: dict[str, list[str]]) -> None:
    key = f"{ROLLOUT}.agent.default_agent_loop"
    assert f"set {SECTION}.enable=True" in problems(runnable, f"{key}=tools")[key]


@pytest.mark.parametrize("name", ["tool_config_path", "interaction_config_path"])
def test_a_file_that_is_not_there_is_named(runnable: dict[str, list[str]], name: str) -> None:
    key = f"{SECTION}.{name}"
    assert "there is no file nowhere.yaml" in problems(runnable, f"{SECTION}.enable=True", f"{key}=nowhere.yaml")[key]


def test_a_limit_on_calls_without_tools_is_refused(runnable: dict[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "users.yaml").touch()
    argv = [f"{SECTION}.enable=True", f"{SECTION}.interaction_config_path={tmp_path}/users.yaml"]
    load("ppo", [*runnable["ppo"], *argv])
    key = f"{SECTION}.max_parallel_calls"
    assert "no tool can be called" in problems(runnable, *argv, f"{key}=2")[key]


def test_the_rules_and_files_of_generation_are_those_of_training(
    runnable: dict[str, list[str]], tmp_path: Path
) -> None:
    def of_generation(*argv: str) -> dict[str, str]:
        with pytest.raises(ConfigError) as caught:
            load("generate", [*runnable["generate"], *argv])
        return {problem.key: str(problem) for problem in caught.value.problems}

    on = "rollout.multi_turn.enable=True"
    assert "nobody answers the model" in of_generation(on)["rollout.multi_turn.enable"]
    agent = "rollout.agent.default_agent_loop"
    assert "set rollout.multi_turn.enable=True" in of_generation(f"{agent}=tools")[agent]
    for key in ("rollout.multi_turn.tool_config_path", "rollout.agent.agent_loop_path"):
        assert "there is no file nowhere" in of_generation(on, f"{key}=nowhere")[key]
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: calculator}]\n")
    loaded = load("generate", [*runnable["generate"], on, f"rollout.multi_turn.tool_config_path={tmp_path}/tools.yaml"])
    assert loaded.config.rollout.agent.default_agent_loop == "tools"
