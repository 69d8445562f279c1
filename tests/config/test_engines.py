"""The keys of the engine that generates: what vLLM and SGLang need of them, and which rest with hone's own."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from hone.config import ConfigError, load
from hone.config import engines as engines_module
from hone.config.engines import SET_BY_HONE
from hone.config.problems import Problem
from hone.rollout.sglang.arguments import EngineArguments as SGLangArguments
from hone.rollout.vllm.arguments import EngineArguments

ROLLOUT = "actor_rollout_ref.rollout"
KWARGS = f"{ROLLOUT}.engine_kwargs.vllm"
VLLM = [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.tensor_model_parallel_size=1"]
SGLANG = [f"{ROLLOUT}.name=sglang", f"{ROLLOUT}.tensor_model_parallel_size=1"]
SERVER = f"{ROLLOUT}.agent.custom_async_server"
Runnable = dict[str, list[str]]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM as far as a configuration looks: that it can be found."""
    monkeypatch.setattr(engines_module, "find_spec", lambda name: name)


def problems_of(argv: list[str], command: str = "ppo") -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(command, argv)
    return tuple(caught.value.problems)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
@pytest.mark.parametrize(("command", "key"), [("ppo", f"{ROLLOUT}.name"), ("generate", "rollout.name")])
def test_a_missing_package_is_one_message_with_the_command_that_installs_it(
    runnable: Runnable, monkeypatch: pytest.MonkeyPatch, command: str, key: str, name: str
) -> None:
    monkeypatch.setattr(engines_module, "find_spec", lambda name: None)
    of_ppo = {"vllm": VLLM, "sglang": SGLANG}[name]
    argv = [*runnable[command], *([f"{key}={name}"] if command == "generate" else of_ppo)]
    (problem,) = problems_of(argv, command)
    assert problem.key == key and "not installed" in problem.wrong
    assert f'pip install "hone-rl[{name}]"' in problem.fix and f"{key}=hf" in problem.fix


@pytest.mark.usefixtures("installed")
def test_a_run_with_vllm_is_let_through_where_it_is_installed(runnable: Runnable) -> None:
    load("ppo", [*runnable["ppo"], *VLLM, f"{KWARGS}={{block_size:16}}", "algorithm.adv_estimator=grpo"])
    load("generate", [*runnable["generate"], "rollout.name=vllm"])


@pytest.mark.usefixtures("installed")
def test_a_run_with_sglang_is_let_through_where_it_is_installed(runnable: Runnable) -> None:
    own = f"{ROLLOUT}.engine_kwargs.sglang={{attention_backend:fa3,max_total_tokens:4096}}"
    load("ppo", [*runnable["ppo"], *SGLANG, own, "algorithm.adv_estimator=grpo"])
    load("generate", [*runnable["generate"], "rollout.name=sglang", "rollout.max_num_batched_tokens=8"])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("use_fire_sampling=True", "use_fire_sampling"),
        ("repetition_penalty=1.2", "repetition_penalty"),
        ("engine_kwargs.sglang={max_running_requests:4}", "engine_kwargs.sglang"),
        ("engine_kwargs.sglang={skip_tokenizer_init:true}", "engine_kwargs.sglang"),
    ],
)
def test_what_sglang_cannot_do_is_refused_and_only_for_sglang(runnable: Runnable, setting: str, key: str) -> None:
    (problem,) = problems_of([*runnable["ppo"], *SGLANG, f"{ROLLOUT}.{setting}"])
    assert problem.key == f"{ROLLOUT}.{key}" and problem.fix
    load("ppo", [*runnable["ppo"], f"{ROLLOUT}.{setting}"])


@pytest.mark.usefixtures("installed")
def test_that_sglang_draws_otherwise_in_every_run_is_said_unless_it_is_told_not_to(runnable: Runnable) -> None:
    told = f"+{ROLLOUT}.engine_kwargs.sglang.enable_deterministic_inference=True"
    assert any("the same trainer.seed" in text for text in load("ppo", [*runnable["ppo"], *SGLANG]).notices)
    assert not any("trainer.seed" in text for text in load("ppo", [*runnable["ppo"], *SGLANG, told]).notices)
    assert not any("trainer.seed" in text for text in load("ppo", [*runnable["ppo"], *VLLM]).notices)


@pytest.mark.usefixtures("installed")
def test_arguments_for_another_engine_rest(runnable: Runnable) -> None:
    both = [f"{ROLLOUT}.engine_kwargs.vllm={{block_size:16}}", f"{ROLLOUT}.engine_kwargs.sglang.attention_backend=fa3"]
    for chosen, other in ((VLLM, "sglang"), (SGLANG, "vllm")):
        notices = [text for text in load("ppo", [*runnable["ppo"], *both, *chosen]).notices if " rests: " in text]
        assert notices == [f"{ROLLOUT}.engine_kwargs.{other} rests: {chosen[0]}"]


def test_a_server_of_ones_own_needs_no_engine_and_both_of_its_keys(runnable: Runnable, tmp_path: Path) -> None:
    server = [f"{SERVER}.path={tmp_path}/server.py", f"{SERVER}.name=Mine", f"{ROLLOUT}.name=vllm"]
    notices = load("ppo", [*runnable["ppo"], *server, f"{ROLLOUT}.tensor_model_parallel_size=2"]).notices
    assert any(f"{ROLLOUT}.name rests" in notice for notice in notices)
    for given, missing in (("path", "name"), ("name", "path")):
        (problem,) = problems_of([*runnable["ppo"], f"{SERVER}.{given}=x.py"])
        assert problem.key == f"{SERVER}.{missing}" and f"{SERVER}.{given} is set" in problem.wrong


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ([f"{ROLLOUT}.tensor_model_parallel_size=2"], f"{ROLLOUT}.tensor_model_parallel_size"),
        ([f"{ROLLOUT}.use_fire_sampling=True"], f"{ROLLOUT}.use_fire_sampling"),
        ([f"{KWARGS}={{max_num_seqs:4}}"], KWARGS),
        ([f"{KWARGS}={{logprobs_mode:raw_logprobs}}"], KWARGS),
        ([f"{ROLLOUT}.max_num_batched_tokens=64"], f"{ROLLOUT}.max_num_batched_tokens"),
        (
            [
                f"{ROLLOUT}.enable_chunked_prefill=False",
                f"{ROLLOUT}.max_num_batched_tokens=900",
                f"{ROLLOUT}.max_num_seqs=9",
            ],
            f"{ROLLOUT}.max_num_batched_tokens",
        ),
    ],
)
def test_what_vllm_cannot_do_is_refused_and_only_for_vllm(runnable: Runnable, overrides: list[str], key: str) -> None:
    (problem,) = problems_of([*runnable["ppo"], *VLLM, *overrides])
    assert problem.key == key and problem.fix
    load("ppo", [*runnable["ppo"], *overrides])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("command", "section"), [("ppo", ROLLOUT), ("generate", "rollout")])
def test_a_machines_ranks_make_whole_engines_or_the_run_is_refused(
    runnable: Runnable, command: str, section: str
) -> None:
    size, ranks = f"{section}.tensor_model_parallel_size", "trainer.n_gpus_per_node"
    argv = [*runnable[command], f"{section}.name=vllm", "trainer.nnodes=2"]
    (problem,) = problems_of([*argv, f"{size}=2", f"{ranks}=3"], command)
    assert problem.key == size and problem.involves == (ranks,)
    assert problem.wrong == "engines of 2 ranks each do not come out even on a machine's trainer.n_gpus_per_node=3"
    assert problem.fix == f"set {size}=1"
    for good in (2, 4):
        load(command, [*argv, f"{size}=2", f"{ranks}={good}"])
    load(command, [*argv, f"{size}=2", f"{ranks}=3", f"{section}.name=hf"])


@pytest.mark.usefixtures("installed")
def test_generation_with_less_than_a_token_for_each_sequence_is_refused(runnable: Runnable) -> None:
    (problem,) = problems_of(
        [*runnable["generate"], "rollout.name=vllm", "rollout.max_num_batched_tokens=8"], "generate"
    )
    assert problem.key == "rollout.max_num_batched_tokens"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "setting",
    ["gpu_memory_utilization=0.4", "enforce_eager=False", "load_format=auto", "disable_log_stats=False",
     "engine_kwargs.vllm={block_size:16}", "dtype=float32", "verify_weights=always"],
)  # fmt: skip
def test_what_rests_with_hones_own_engine_is_said_for_it_alone(runnable: Runnable, setting: str) -> None:
    argv = [*runnable["ppo"], f"{ROLLOUT}.{setting}"]
    key = f"{ROLLOUT}.{setting.partition('=')[0]}"
    assert [notice for notice in load("ppo", argv).notices if key in notice]
    assert not [notice for notice in load("ppo", [*argv, *VLLM]).notices if key in notice]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "setting", ["gpu_memory_utilization=0.4", "enforce_eager=False", "tensor_model_parallel_size=2"]
)
def test_it_is_said_of_generation_too(runnable: Runnable, setting: str) -> None:
    argv = [*runnable["generate"], f"rollout.{setting}", "trainer.n_gpus_per_node=2"]
    key = f"rollout.{setting.partition('=')[0]}"
    assert [notice for notice in load("generate", argv).notices if key in notice]
    assert not [notice for notice in load("generate", [*argv, "rollout.name=vllm"]).notices if key in notice]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("chosen", [VLLM, SGLANG])
def test_on_a_cpu_an_engine_keeps_its_cache_and_says_so(runnable: Runnable, chosen: list[str]) -> None:
    argv = [*runnable["ppo"], *chosen, "trainer.device=cpu", f"{ROLLOUT}.free_cache_engine=True"]
    assert any("free_cache_engine rests" in notice for notice in load("ppo", argv).notices)
    assert not any("free_cache" in notice for notice in load("ppo", [*argv, "trainer.device=cuda"]).notices)


def test_the_table_of_sglangs_arguments_is_what_is_set() -> None:
    made = SGLangArguments("m", "t", "cuda", "float32", 0, 128, 8, 64, True, {}).for_sglang()
    chosen_by_users = {"grammar_backend"}
    refused_only = {"skip_tokenizer_init", "custom_sigquit_handler", "dp_size", "nnodes"}
    assert set(made) - chosen_by_users == set(SET_BY_HONE["sglang"]) - refused_only


@pytest.mark.usefixtures("installed")
def test_on_a_cpu_vllm_splits_no_prompts_and_says_so(runnable: Runnable) -> None:
    argv, key = [*runnable["ppo"], *VLLM], f"{ROLLOUT}.enable_chunked_prefill"
    asked = [*argv, f"{key}=True"]
    assert any(f"{key}=True rests" in notice for notice in load("ppo", [*asked, "trainer.device=cpu"]).notices)
    for other in ([*asked, "trainer.device=cuda"], [*argv, f"{key}=False", "trainer.device=cpu"]):
        assert not any(key in notice for notice in load("ppo", other).notices)


def test_the_table_of_arguments_is_what_is_set() -> None:
    made = EngineArguments("m", "float32", 0, 128, 8, 64, False, {}, False, "auto", 0.5, True, True, 1, True)
    assert set(made.for_vllm()) == set(SET_BY_HONE["vllm"])
    assert {field.name for field in fields(EngineArguments)} - {"more"} <= set(SET_BY_HONE["vllm"])


def test_an_argument_that_vllm_does_not_have_is_found_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from hone.errors import UserError
    from hone.rollout.vllm.arguments import check_names

    stand_in = ModuleType("vllm.engine.arg_utils")
    stand_in.AsyncEngineArgs = EngineArguments  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.engine"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", stand_in)
    check_names({"max_num_seqs": 1})
    with pytest.raises(UserError, match="no argument blok_size, swap"):
        check_names({"swap": 1, "blok_size": 2, "seed": 3})
