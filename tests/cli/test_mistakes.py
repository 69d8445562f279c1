"""A mistake of the user's ends with code 2 and one message that names what is wrong and what to do: no traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone.cli.main import main
from tests.trainers.runs import ACTOR, MODEL, ROLLOUT, Stage


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


@pytest.fixture
def places(stage: Stage) -> dict[str, str]:
    """Things that are wrong in themselves, by the names that the cases below use."""
    d = stage.directory
    (d / "empty").mkdir()
    (d / "file").write_text("a file")
    (d / "answers.jsonl").write_text(json.dumps({"data_source": "arithmetic", "reward_model": {}, "responses": "5"}))
    (d / "truth.jsonl").write_text(json.dumps({"data_source": "arithmetic", "reward_model": "5", "responses": ["5"]}))
    (d / "broken.jsonl").write_text('{"prompt": \n')
    (d / "broken.parquet").write_text("not parquet")
    (d / "rows.csv").write_text("prompt\n")
    row = {"prompt": [{"role": "user", "content": "What?"}], "reward_model": {"ground_truth": "5"}}
    write(d / "sourceless.parquet", [row] * 4)
    write(d / "unheard.parquet", [{**row, "data_source": "unheard-of"}] * 4)
    write(d / "roles.parquet", [{**row, "data_source": "x", "prompt": [{"role": "wizard", "content": "?"}]}] * 4)
    shutil.copy(stage.data / "test.parquet", d / "same.parquet")
    (d / "link.parquet").symlink_to(d / "same.parquet")
    (d / "no_function.py").write_text("def other():\n    return 1\n")
    (d / "broken.py").write_text("import no_such_module\n")
    shutil.copytree(stage.model, d / "no_weights", ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copytree(stage.model, d / "no_template", ignore=shutil.ignore_patterns("chat_template*"))
    return {"d": str(d), "model": str(stage.model), "data": str(stage.data)}


def write(path: Path, rows: list[dict]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


GREEDY = ["custom_reward_function.path=null"]
PPO = {
    "missing model": ([f"{MODEL}.path=./nowhere"], [f"{MODEL}.path", "./nowhere", "model folder"]),
    "not a model": ([f"{MODEL}.path={{d}}/empty"], ["{d}/empty"]),
    "model without weights": ([f"{MODEL}.path={{d}}/no_weights"], ["{d}/no_weights"]),
    "no chat template": ([f"{MODEL}.path={{d}}/no_template"], ["chat template"]),
    "missing data": (["data.train_files={d}/none.parquet"], ["data.train_files", "{d}/none.parquet"]),
    "data of an unknown kind": (["data.train_files={d}/rows.csv"], ["rows.csv", ".parquet"]),
    "broken parquet": (["data.train_files={d}/broken.parquet"], ["broken.parquet", "not a readable parquet"]),
    "broken json": (["data.train_files={d}/broken.jsonl"], ["broken.jsonl, line 1", "one object a line"]),
    "missing column": (["data.prompt_key=question"], ["question", "data.prompt_key", "train.parquet"]),
    "missing source": (["data.train_files={d}/sourceless.parquet"], ["data.reward_fn_key", "data_source"]),
    "no scorer": (["data.train_files={d}/unheard.parquet", *GREEDY], ["unheard-of", "custom_reward_function.path"]),
    "unknown role": (["data.train_files={d}/roles.parquet"], ["roles.parquet, row", "wizard"]),
    "long prompts": (["data.max_prompt_length=10"], ["row", "data.max_prompt_length", "filter_overlong_prompts=True"]),
    "all too long": (["data.max_prompt_length=10", "data.filter_overlong_prompts=True"], ["data.max_prompt_length=10"]),
    "fewer rows than a batch": (["data.train_max_samples=3"], ["data.train_batch_size=4", "3 rows"]),
    "small token budget": ([f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=50"],
                           [f"{ACTOR}.ppo_max_token_len_per_gpu", "108"]),
    "output below a file": (["trainer.default_local_dir={d}/file/run"], ["trainer.default_local_dir", "{d}/file"]),
    "dump below a file": (["trainer.rollout_data_dir={d}/file"], ["trainer.rollout_data_dir", "{d}/file"]),
    "no folder to resume from": (["trainer.resume_mode=resume_path", "trainer.resume_from_path={d}/none"],
                                 ["trainer.resume_from_path", "{d}/none"]),
    "no checkpoint to resume from": (["trainer.resume_mode=resume_path", "trainer.resume_from_path={d}/empty"],
                                     ["trainer.resume_from_path", "global_step_<N>"]),
    "unknown optimiser": ([f"{ACTOR}.optim.optimizer=AdamX"], ["optim.optimizer=AdamX"]),
    "unknown optimiser argument": ([f"{ACTOR}.optim.override_optimizer_config={{{{speed:1}}}}"],
                                   ["override_optimizer_config", "speed"]),
    "optimiser package": ([f"{ACTOR}.optim.optimizer_impl=bitsandbytes.optim"], ["optim.optimizer_impl"]),
    "unknown model attribute": ([f"+{MODEL}.override_config.hiden_size=3"], ["override_config", "hiden_size"]),
    "missing library": ([f"{MODEL}.external_lib=no_such_package"], [f"{MODEL}.external_lib", "no_such_package"]),
    "missing agents": ([f"{ROLLOUT}.agent.agent_loop_path={{d}}/none.py"], [f"{ROLLOUT}.agent.agent_loop_path"]),
    "unknown agent": ([f"{ROLLOUT}.agent.default_agent_loop=magic"], ["magic", "single_turn"]),
    "missing function": (["custom_reward_function.path={d}/no_function.py"], ["compute_score", "other"]),
    "broken function": (["custom_reward_function.path={d}/broken.py"], ["broken.py", "no_such_module"]),
    "unknown key": (["trainer.totl_epochs=3"], ["trainer.totl_epochs", "trainer.total_epochs"]),
    "wrong type": (["data.train_batch_size=many"], ["data.train_batch_size", "many"]),
    "bad yaml": (["--config-path={d}", "--config-name=none"], ["none"]),
}  # fmt: skip
OTHERS = {
    "sft: missing column": (["sft", "data.response_key=reply"], ["reply", "data.response_key"]),
    "sft: long rows": (["sft", "data.max_length=20"], ["row", "data.max_length=20", "data.truncation"]),
    "sft: output": (["sft", "trainer.default_local_dir={d}/file"], ["trainer.default_local_dir"]),
    "sft: optimiser": (["sft", "optim.optimizer=AdamX"], ["optim.optimizer=AdamX"]),
    "generate: data": (["generate", "data.path={d}/none.parquet"], ["data.path", "{d}/none.parquet"]),
    "generate: column": (["generate", "data.prompt_key=question"], ["question", "data.prompt_key"]),
    "generate: model": (["generate", "model.path={d}/empty"], ["{d}/empty"]),
    "generate: output": (["generate", "data.output_path={d}/file/out.parquet"], ["data.output_path", "{d}/file"]),
    "generate: folder": (["generate", "data.output_path={d}/empty"], ["data.output_path", "is a folder"]),
    "generate: long prompts": (["generate", "rollout.prompt_length=10"], ["row", "rollout.prompt_length"]),
    "generate: itself": (["generate", "data.path={d}/same.parquet", "data.output_path={d}/link.parquet"],
                         ["data.output_path", "{d}/link.parquet is the file that data.path names"]),
    "eval: itself": (["eval", "data.path={d}/truth.jsonl", "output_path={d}/truth.jsonl"],
                     ["output_path", "is the file that data.path names"]),
    "eval: data": (["eval", "data.path={d}/none.parquet"], ["data.path", "{d}/none.parquet"]),
    "eval: column": (["eval", "data.path={data}/test.parquet"], ["responses", "data.response_key"]),
    "eval: no list": (["eval", "data.path={d}/answers.jsonl"], ["answers.jsonl, row 0", "expected a list"]),
    "eval: truth": (["eval", "data.path={d}/truth.jsonl"], ["truth.jsonl, row 0", "reward_model"]),
    "eval: output": (["eval", "output_path={d}/file/x.json", "data.path={d}/truth.jsonl"], ["output_path"]),
    "demo: option": (["demo", "--algoritm", "grpo"], ["--algoritm"]),
    "demo: choice": (["demo", "--algorithm", "magic"], ["magic"]),
    "demo: output": (["demo", "--output", "{d}/file"], ["{d}/file"]),
    "data: below a file": (["data", "arithmetic", "--output", "{d}/file/x"], ["{d}/file/x"]),
    "data: output": (["data", "arithmetic", "--output", "{d}/file"], ["{d}/file"]),
    "data: input": (["data", "gsm8k", "--input", "{d}/none.jsonl", "--output", "{d}/o.parquet"], ["{d}/none.jsonl"]),
    "model: corpus": (["model", "tiny", "--output", "{d}/m", "--corpus", "{d}/rows.csv"], ["rows.csv"]),
    "model: below a file": (["model", "tiny", "--output", "{d}/file/x", "--corpus", "{data}/train.parquet"],
                            ["{d}/file/x"]),
    "model: output": (["model", "tiny", "--output", "{d}/file", "--corpus", "{data}/train.parquet"], ["{d}/file"]),
}  # fmt: skip


def assert_one_message(argv: list[str], words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(argv)
    message = capfd.readouterr().err
    assert caught.value.code == 2, message
    assert "Traceback" not in message
    for word in words:
        assert unwrapped(word) in unwrapped(message), message


def unwrapped(text: str) -> str:
    """Without the lines and the box that a message is broken into."""
    return "".join(text.replace("│", "").split())


@pytest.mark.parametrize("mistake", list(PPO))
def test_a_mistake_in_an_rl_run_is_one_message(
    mistake: str, stage: Stage, places: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    overrides, words = PPO[mistake]
    argv = ["ppo", *stage.ppo("run"), *(text.format(**places) for text in overrides)]
    assert_one_message(argv, [word.format(**places) for word in words], capfd)


@pytest.mark.parametrize("mistake", list(OTHERS))
def test_a_mistake_with_another_command_is_one_message(
    mistake: str, stage: Stage, places: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    (command, *overrides), words = OTHERS[mistake]
    right = {
        "sft": stage.sft("run"),
        "generate": [f"model.path={stage.model}", f"data.path={stage.data}/test.parquet", "trainer.device=cpu",
                     f"data.output_path={stage.directory}/out.parquet"],
    }.get(command, [])  # fmt: skip
    argv = [command, *right, *(text.format(**places) for text in overrides)]
    assert_one_message(argv, [word.format(**places) for word in words], capfd)
