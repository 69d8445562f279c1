"""What data files and model folders lack is found by `hone config check`, in one pass and without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone.cli.preflight import load_and_check
from hone.errors import UserError

ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
ROW = {
    "prompt": [{"role": "user", "content": "What?"}],
    "data_source": "arithmetic",
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "answer": "#### 5",
    "responses": ["5"],
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        path.write_text(json.dumps(rows))
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with data files that are good, and some that are not."""
    good = write(tmp_path / "good.parquet", [ROW] * 16).read_bytes()
    write(tmp_path / "good.jsonl", [ROW] * 16)
    write(tmp_path / "good.json", [ROW] * 16)
    (tmp_path / "cut.parquet").write_bytes(good[:-20])
    (tmp_path / "text.parquet").write_text("not parquet at all")
    (tmp_path / "empty.parquet").touch()
    pq.write_table(pa.Table.from_pylist([ROW]).slice(0, 0), tmp_path / "rowless.parquet")
    (tmp_path / "rowless.jsonl").write_text("\n\n")
    (tmp_path / "broken.jsonl").write_text(json.dumps(ROW) + "\n{\n")
    (tmp_path / "rows.csv").write_text("prompt\n")
    write(tmp_path / "unheard.parquet", [{**ROW, "data_source": "unheard-of"}] * 16)
    write(tmp_path / "silent.parquet", [{**ROW, "prompt": [{"role": "user", "content": ""}]}] * 16)
    (tmp_path / "two.py").write_text("def compute_score(answer, truth):\n    return 1.0\n")
    (tmp_path / "four.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1\n"
    )
    return tmp_path


@pytest.fixture
def argv(files: Path, tiny_model_dir: Path) -> Callable[[str], list[str]]:
    """Overrides with which a command can run."""
    data, model = f"{files}/good.parquet", tiny_model_dir
    commands = {
        "ppo": [f"data.train_files={data}", "data.val_files=null", "data.train_batch_size=8",
                f"{ACTOR}.ppo_mini_batch_size=4", f"{MODEL}.path={model}", "actor_rollout_ref.rollout.name=hf",
                "trainer.n_gpus_per_node=1", "trainer.logger=[console]"],
        "sft": [f"data.train_files={data}", "data.response_key=answer", "data.train_batch_size=8",
                f"model.partial_pretrain={model}"],
        "generate": [f"data.path={data}", f"model.path={model}"],
        "eval": [f"data.path={data}"],
    }  # fmt: skip
    return lambda command: commands[command]


def said(command: str, argv: list[str], **options: bool) -> str:
    with pytest.raises(UserError) as caught:
        load_and_check(command, argv, **options)
    return str(caught.value)


@pytest.mark.parametrize("command", ["ppo", "sft", "generate", "eval"])
def test_what_is_right_is_accepted_without_torch_and_soon(command: str, argv: Callable[[str], list[str]]) -> None:
    """The bound is on the processor's time, since other programs may take the machine's."""
    code = (
        "import sys, time; from hone.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules); print('took', time.process_time())"
    )
    arguments = [sys.executable, "-c", code, "config", "check", command, *argv(command)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0 and "can run" in done.stdout, done.stderr
    assert float(done.stdout.split("took")[1]) < 3


DATA = {
    "cut.parquet": "it is cut short",
    "text.parquet": "it holds something else",
    "empty.parquet": "is empty: expected a parquet file",
    "rowless.parquet": "there are no rows",
    "rowless.jsonl": "there are no rows",
    "broken.jsonl": "line 2 is not valid JSON",
    "rows.csv": "has the ending '.csv'",
    "missing.parquet": "there is no file",
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("command", ["ppo", "sft", "generate", "eval"])
def test_a_file_that_cannot_be_read_is_found_for_every_command(
    command: str, name: str, files: Path, argv: Callable[[str], list[str]]
) -> None:
    key = "data.train_files" if command in ("ppo", "sft") else "data.path"
    text = said(command, [*argv(command), f"{key}={files}/{name}"])
    assert key in text and name in text and DATA[name] in text


@pytest.mark.parametrize("name", ["good.jsonl", "good.json"])
def test_other_kinds_of_files_are_read(name: str, files: Path, argv: Callable[[str], list[str]]) -> None:
    load_and_check("ppo", [*argv("ppo"), f"data.train_files={files}/{name}"])
    more = [f"data.train_files={files}/{name}", "data.train_batch_size=32", f"{ACTOR}.ppo_mini_batch_size=32"]
    assert "larger than the 16 rows" in said("ppo", [*argv("ppo"), *more])


@pytest.mark.parametrize(
    ("command", "key"),
    [("ppo", "prompt_key"), ("ppo", "reward_fn_key"), ("sft", "prompt_key"), ("sft", "response_key"),
     ("generate", "prompt_key"), ("eval", "response_key"), ("eval", "data_source_key"), ("eval", "reward_model_key")],
)  # fmt: skip
def test_a_column_that_is_not_there_is_found(command: str, key: str, argv: Callable[[str], list[str]]) -> None:
    text = said(command, [*argv(command), f"data.{key}=nowhere"])
    assert f"has no column 'nowhere' (data.{key})" in text and "Its columns: prompt" in text


def test_conversations_are_looked_for_where_they_are_trained_on(argv: Callable[[str], list[str]]) -> None:
    assert "no column 'messages' (data.messages_key)" in said("sft", [*argv("sft"), "data.multiturn.enable=True"])


@pytest.mark.parametrize("command", ["ppo", "sft"])
def test_a_batch_of_more_rows_than_there_are_is_found(command: str, argv: Callable[[str], list[str]]) -> None:
    mini = [f"{ACTOR}.ppo_mini_batch_size=1"] if command == "ppo" else []
    assert "larger than the 16 rows" in said(command, [*argv(command), *mini, "data.train_batch_size=17"])
    assert "larger than the 5 rows" in said(command, [*argv(command), "data.train_max_samples=5"])


def test_a_first_row_that_cannot_be_used_is_found(files: Path, argv: Callable[[str], list[str]]) -> None:
    assert "row 0: No scorer" in said("ppo", [*argv("ppo"), f"data.train_files={files}/unheard.parquet"])
    assert "is empty" in said("ppo", [*argv("ppo"), f"data.train_files={files}/silent.parquet"])
    own = [f"data.train_files={files}/unheard.parquet", f"custom_reward_function.path={files}/four.py"]
    load_and_check("ppo", [*argv("ppo"), *own])
    drawn = [f"data.train_files={files}/unheard.parquet", "data.train_max_samples=8"]  # row 0 may not be among them
    load_and_check("ppo", [*argv("ppo"), *drawn])


def test_a_reward_function_that_takes_other_arguments_is_found(files: Path, argv: Callable[[str], list[str]]) -> None:
    text = said("eval", [*argv("eval"), f"custom_reward_function.path={files}/two.py"])
    assert "compute_score(data_source=..., solution_str=..., ground_truth=..., extra_info=...) fails" in text


def test_a_schedule_is_held_against_the_steps_that_the_rows_make(argv: Callable[[str], list[str]]) -> None:
    optim = f"{ACTOR}.optim"
    more = [f"{optim}.lr_scheduler_type=cosine", f"{optim}.lr_warmup_steps=4", "algorithm.adv_estimator=grpo"]

    def noticed(epochs: int) -> bool:
        notices = load_and_check("ppo", [*argv("ppo"), *more, f"trainer.total_epochs={epochs}"]).notices
        return any("4 steps of warm-up in a run of 4" in notice for notice in notices)

    assert noticed(2) and not noticed(3)


@pytest.fixture
def model(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "copy"))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "it has no config.json"),
    "unreadable config": (lambda f: (f / "config.json").write_text("{"), "config.json is not valid JSON"),
    "another config": (lambda f: (f / "config.json").write_text("{}"), "names no model_type"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "holds no weights"),
    "cut weights": (lambda f: _cut(f / "model.safetensors"), "cut short: it holds"),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "its header is not whole"),
    "a missing shard": (_index, "lacks model-00002-of-00002.safetensors"),
    "no tokenizer": (lambda f: [p.unlink() for p in f.glob("tokenizer*")], "holds no tokenizer"),
    "no vocabulary": (lambda f: (f / "tokenizer.json").unlink(), "holds no tokenizer"),
    "no template": (lambda f: (f / "chat_template.jinja").unlink(), "has no chat template"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", ["ppo", "sft", "generate"])
def test_a_folder_that_is_no_whole_model_is_found(
    command: str, damage: str, model: Path, argv: Callable[[str], list[str]]
) -> None:
    break_it, message = DAMAGES[damage]
    break_it(model)
    key = {"ppo": f"{MODEL}.path", "sft": "model.partial_pretrain", "generate": "model.path"}[command]
    text = said(command, [*argv(command), f"{key}={model}"])
    assert text.startswith(f"{key}: ") and message in text


def test_a_plan_needs_only_the_configuration_of_a_model(model: Path, argv: Callable[[str], list[str]]) -> None:
    for file in model.iterdir():
        if file.name != "config.json":
            file.unlink()
    load_and_check("ppo", [*argv("ppo"), f"{MODEL}.path={model}"], here=False)


def test_everything_is_reported_together(files: Path, model: Path, argv: Callable[[str], list[str]]) -> None:
    (model / "config.json").unlink()
    text = said("ppo", [*argv("ppo"), f"data.train_files=[{files}/cut.parquet,{files}/text.parquet]",
                        f"{MODEL}.path={model}", "trainer.total_epochs=many",
                        f"custom_reward_function.path={files}/two.py"])  # fmt: skip
    assert text.startswith("5 problems"), text
    for word in ("cut.parquet", "text.parquet", "no config.json", "'many'", "two.py"):
        assert word in text


def test_a_model_that_is_shorter_than_the_sequences_is_said_to_be(
    model: Path, argv: Callable[[str], list[str]]
) -> None:
    lengths = ["data.max_prompt_length=64", "data.max_response_length=64"]
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 100}))
    base = [*argv("ppo"), *lengths, f"{MODEL}.path={model}"]
    (notice,) = (n for n in load_and_check("ppo", base).notices if "was made for" in n)
    assert "= 128 tokens are more than the 100" in notice and "max_position_embeddings" in notice
    scaled = f"{MODEL}.override_config.model_config.rope_parameters={{rope_type:linear,factor:2.0,rope_theta:10000.0}}"
    assert not any("was made for" in n for n in load_and_check("ppo", [*base, scaled]).notices)
    assert any("data.max_length = 1024" in n for n in load_and_check(
        "sft", [*argv("sft"), f"model.partial_pretrain={model}"]).notices)  # fmt: skip
    (model / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_positions": 100}))
    assert "it has no positions beyond them; expected at most 100" in said("ppo", base)


def test_vllm_takes_no_longer_sequences_than_the_model(
    model: Path, argv: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hone.config.engines.find_spec", lambda name: name)
    more = ["actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.tensor_model_parallel_size=1"]
    base = [*argv("ppo"), f"{MODEL}.path={model}", *more]
    load_and_check("ppo", base)
    assert "vLLM refuses more" in said("ppo", [*base, "data.max_prompt_length=2000"])
    text = said("ppo", [*base, "actor_rollout_ref.rollout.max_model_len=4096"])
    assert "rollout.max_model_len = 4096 tokens are more than the 2048" in text


def test_a_name_on_the_hub_is_said_to_be_unchecked(
    argv: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hone.cli.preflight_models.require_reachable", lambda *_: None)
    notices = load_and_check("ppo", [*argv("ppo"), f"{MODEL}.path=somebody/something"]).notices
    assert any("somebody/something is a name on the hub: the model's files were not looked at" in n for n in notices)


def test_a_large_file_is_not_read_to_its_end(tmp_path: Path, argv: Callable[[str], list[str]]) -> None:
    line = json.dumps({**ROW, "padding": "x" * 1000}) + "\n"
    with (tmp_path / "large.jsonl").open("w") as stream:
        for _ in range(100):
            stream.write(line * 1000)
    begun = time.process_time()
    load_and_check("ppo", [*argv("ppo"), f"data.train_files={tmp_path}/large.jsonl"])
    assert time.process_time() - begun < 2


def test_a_tokenizer_with_code_of_its_own_is_left_alone_where_that_may_run(
    model: Path, argv: Callable[[str], list[str]]
) -> None:
    (model / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["mine.Mine", None]}}))
    (model / "tokenizer.json").unlink()
    (model / "chat_template.jinja").unlink()
    base = [*argv("ppo"), f"{MODEL}.path={model}"]
    load_and_check("ppo", [*base, "data.trust_remote_code=True"])
    assert "holds no tokenizer" in said("ppo", [*base, "data.trust_remote_code=False"])
