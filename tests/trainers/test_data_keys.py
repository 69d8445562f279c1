"""Keys of data: which rows are read, from where, how long they may be, and by which tokenizer."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hone.agents import load_surroundings
from hone.config import load
from hone.data.prompts import PromptDataset
from hone.errors import UserError
from hone.models.load import load_tokenizer
from hone.trainers import generate, ppo_setup, sft
from hone.trainers.row_checks import load_conversations
from tests.shows import shows
from tests.trainers.runs import Stage
from tests.trainers.test_keys_arrive import generation


def written(stage: Stage, name: str, *rows: dict[str, Any]) -> str:
    path = stage.directory / name
    path.write_text("".join(json.dumps({"data_source": "arithmetic", "reward_model": {"ground_truth": "1"}} | row)
                            + "\n" for row in rows))  # fmt: skip
    return str(path)


def prompts(stage: Stage, *more: str, training: bool = True) -> PromptDataset:
    config = load("ppo", stage.ppo("run", *more)).config
    surroundings = load_surroundings(config.actor_rollout_ref.rollout.multi_turn)
    return ppo_setup.prompts(config, load_tokenizer(str(stage.model)), surroundings, training=training)


@shows("data.train_files", "data.val_files", "data.prompt_key", "data.reward_fn_key")
def test_rows_come_from_the_files_and_columns_that_are_named(stage: Stage) -> None:
    row = {"ask": "Tom has 5 cups.", "from": "gsm8k"}
    train, val = written(stage, "a.jsonl", row), written(stage, "b.jsonl", {**row, "ask": "Ann has 7 cups."})
    keys = (f"data.train_files={train}", f"data.val_files=[{val}]", "data.prompt_key=ask", "data.reward_fn_key=from")
    own = f"custom_reward_function.path={stage.reward}"
    for training, asked in ((True, "Tom has 5 cups."), (False, "Ann has 7 cups.")):
        (sample,) = list(prompts(stage, *keys, own, training=training))
        assert sample.messages[0]["content"] == asked and sample.data_source == "gsm8k"


@shows("data.image_key", "data.video_key")
@pytest.mark.parametrize("kind", ["image", "video"])
def test_rows_with_images_are_found_in_the_column_that_is_named(stage: Stage, kind: str) -> None:
    file = written(stage, "a.jsonl", {"prompt": "cups", "shown": ["x.png"]})
    prompts(stage, f"data.train_files={file}")
    with pytest.raises(UserError, match="row 0 has shown: multimodal"):
        prompts(stage, f"data.train_files={file}", f"data.{kind}_key=shown")


@shows("data.max_prompt_length", "data.truncation", "data.filter_overlong_prompts")
def test_long_prompts_are_cut_dropped_or_refused(stage: Stage) -> None:
    whole = prompts(stage)[0].prompt_ids
    short = "data.max_prompt_length=10"
    cuts = {way: prompts(stage, short, f"data.truncation={way}")[0].prompt_ids for way in ("left", "right", "middle")}
    assert cuts == {"left": whole[-10:], "right": whole[:10], "middle": [*whole[:5], *whole[-5:]]}
    with pytest.raises(UserError, match="max_prompt_length=10"):
        prompts(stage, short)
    lengths = sorted(len(sample.prompt_ids) for sample in prompts(stage))
    limit = lengths[len(lengths) // 2]
    kept = prompts(stage, f"data.max_prompt_length={limit}", "data.filter_overlong_prompts=True")
    assert len(kept) == sum(length <= limit for length in lengths) < len(lengths)


@shows("data.filter_overlong_prompts_workers")
def test_prompts_are_measured_by_so_many_processes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    from hone.data import prompts as module

    asked: list[int] = []
    measure = module.measure
    monkeypatch.setattr(
        module, "measure", lambda *a, workers=1, **more: (asked.append(workers), measure(*a, **more))[1]
    )
    prompts(stage, "data.filter_overlong_prompts=True", "data.filter_overlong_prompts_workers=3")
    assert asked == [3]


@shows("data.train_max_samples", "data.val_max_samples", "data.shuffle", "data.seed")
def test_so_many_rows_are_chosen_and_which_depends_on_the_seed(stage: Stage) -> None:
    def rows(*more: str) -> list[int]:
        return prompts(stage, "data.train_max_samples=5", *more).kept.tolist()

    assert len(rows()) == 5 and rows() == rows() != rows("data.seed=7")
    assert rows("data.shuffle=False") == [0, 1, 2, 3, 4]
    assert len(prompts(stage, "data.val_max_samples=4", training=False)) == 4


class AskedError(Exception):
    pass


@shows("data.tokenizer", "data.trust_remote_code")
def test_the_tokenizer_is_the_one_that_is_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*more: str) -> tuple[str, bool]:
        with pytest.raises(AskedError) as caught:
            stage.run_ppo("run", *more)
        return caught.value.args

    def refuse(path: str, *, trust_remote_code: bool) -> None:
        raise AskedError(path, trust_remote_code)

    monkeypatch.setattr(ppo_setup, "load_tokenizer", refuse)
    other = stage.directory / "other"
    other.symlink_to(stage.model)
    assert asked() == (str(stage.model), True)
    assert asked(f"data.tokenizer={other}", "data.trust_remote_code=False") == (str(other), False)


@shows("data.trust_remote_code", command="sft")
def test_fine_tuning_trusts_a_tokenizer_that_it_may_trust(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *, trust_remote_code: bool) -> None:
        raise AskedError(path, trust_remote_code)

    monkeypatch.setattr(sft, "load_tokenizer", refuse)
    for trusted in (False, True):
        with pytest.raises(AskedError) as caught:
            stage.run_sft("run", f"data.trust_remote_code={trusted}")
        assert caught.value.args == (str(stage.model), trusted)


def demonstrations(stage: Stage, *more: str, training: bool = True) -> Any:
    config = load("sft", stage.sft("run", *more)).config
    data, tokenizer = config.data, load_tokenizer(str(stage.model))
    files = data.train_files if training else data.val_files
    return sft._dataset(config, tokenizer, files, data.train_max_samples if training else data.val_max_samples)


@shows("data.train_files", "data.val_files", "data.prompt_key", "data.response_key", command="sft")
@shows("data.prompt_dict_keys", "data.response_dict_keys", command="sft")
def test_demonstrations_come_from_the_files_and_columns_that_are_named(stage: Stage) -> None:
    train = written(stage, "a.jsonl", {"ask": {"now": "Tom has 5 cups."}, "said": {"then": "5"}})
    val = written(stage, "b.jsonl", {"ask": {"now": "Tom has 7 cups."}, "said": {"then": "7"}})
    keys = [f"data.train_files={train}", f"data.val_files={val}", "data.prompt_key=ask", "data.response_key=said",
            "data.prompt_dict_keys=[now]", "data.response_dict_keys=[then]"]  # fmt: skip
    flat = [written(stage, f"{n}.jsonl", {"prompt": f"Tom has {n} cups.", "answer": f"{n}"}) for n in (5, 7)]
    for training, file in zip((True, False), flat, strict=True):
        assert (
            demonstrations(stage, *keys, training=training)[0] == demonstrations(stage, f"data.train_files={file}")[0]
        )


@shows("data.max_length", "data.truncation", "data.train_max_samples", "data.val_max_samples", command="sft")
def test_demonstrations_are_cut_and_chosen(stage: Stage) -> None:
    assert len(demonstrations(stage, "data.train_max_samples=5")) == 5
    assert len(demonstrations(stage, "data.val_max_samples=4", training=False)) == 4
    whole, plain = demonstrations(stage, "data.shuffle=False")[0].input_ids, ["data.shuffle=False"]
    plain.append(f"data.max_length={len(whole) - 3}")
    with pytest.raises(UserError, match="max_length"):
        demonstrations(stage, *plain)
    assert demonstrations(stage, *plain, "data.truncation=left")[0].input_ids == whole[3:]
    assert demonstrations(stage, *plain, "data.truncation=right")[0].input_ids == whole[:-3]


def prompts_of(stage: Stage, config: Any) -> PromptDataset:
    return generate._prompts(config, load_tokenizer(str(stage.model)), load_conversations(config))


@shows("data.path", "data.prompt_key", "data.max_samples", "rollout.prompt_length", command="generate")
def test_prompts_to_answer_come_from_the_file_and_column_that_are_named(stage: Stage) -> None:
    def found(*more: str) -> PromptDataset:
        return prompts_of(stage, generation(stage, *more))

    file = written(stage, "a.jsonl", {"ask": "Tom has 5 cups."}, {"ask": "cups " * 90})
    keys = (f"data.path={file}", "data.prompt_key=ask")
    assert found(*keys)[0].messages[0]["content"] == "Tom has 5 cups." and len(found(*keys)) == 2
    with pytest.raises(UserError, match=r"row 1.*rollout\.prompt_length=50"):
        found(*keys, "rollout.prompt_length=50")
    assert len(found(*keys, "rollout.prompt_length=50", "data.max_samples=1")) == 1


@shows("data.batch_size", command="generate")
def test_so_many_prompts_are_in_flight_at_once(stage: Stage) -> None:
    def in_flight(*more: str) -> list[int]:
        config, sizes = generation(stage, "data.max_samples=5", "data.n_samples=2", *more), []
        rollout: Any = SimpleNamespace(stream=lambda name, tasks: (sizes.append(len(tasks)), [])[1])
        list(generate._trajectories(config, prompts_of(stage, config), rollout))
        return sizes

    assert in_flight() == [10] and in_flight("data.batch_size=2") == [4, 4, 2]
