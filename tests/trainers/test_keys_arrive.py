"""Keys of sampling, the rollout's engine and the trainer reach what a run is made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hone.config import load
from hone.errors import UserError
from hone.trainers import generate, ppo_setup, sft
from hone.trainers.ppo_setup import Setup
from hone.trainers.sampling import sampling_of
from hone.workers import rollout as rollout_worker
from hone.workers import rollout_engines
from hone.workers.settings import RunSettings
from tests.shows import shows
from tests.trainers.runs import ROLLOUT, Run, Stage, same_weights

CPU = torch.device("cpu")
VAL = f"{ROLLOUT}.val_kwargs"


def sampling(stage: Stage, *more: str, validation: bool = False) -> Any:
    rollout = load("ppo", stage.ppo("run", *more)).config.actor_rollout_ref.rollout
    return sampling_of(rollout, rollout.val_kwargs if validation else rollout)


DRAWS = {"temperature": ("0.25", 0.25), "top_k": ("7", 7), "top_p": ("0.75", 0.75), "min_p": ("0.125", 0.125)}


@shows(*(f"{ROLLOUT}.{name}" for name in DRAWS), *(f"{VAL}.{name}" for name in DRAWS), f"{VAL}.do_sample")
@pytest.mark.parametrize("section", [ROLLOUT, VAL])
def test_training_and_validation_draw_by_keys_of_their_own(stage: Stage, section: str) -> None:
    keys = [f"{section}.{name}={value}" for name, (value, _) in DRAWS.items()]
    validates = section == VAL
    found = sampling(stage, *keys, f"{VAL}.do_sample=True", validation=validates)
    assert {name: getattr(found, name) for name in DRAWS} == {name: value for name, (_, value) in DRAWS.items()}
    assert sampling(stage, *keys, validation=not validates).temperature == (1.0 if validates else 0.0)
    assert sampling(stage, f"{VAL}.temperature=0.5", validation=True).temperature == 0.0  # without do_sample


@shows(f"{ROLLOUT}.ignore_eos", f"{ROLLOUT}.response_length", "data.max_response_length", f"{ROLLOUT}.do_sample")
def test_responses_end_where_the_keys_say(stage: Stage) -> None:
    for ends in (False, True):
        found = sampling(stage, f"{ROLLOUT}.ignore_eos={ends}", "data.max_response_length=9")
        assert (found.ignore_eos, found.max_tokens) == (ends, 9)
    greedy = sampling(stage, f"{ROLLOUT}.do_sample=False", "trainer.val_only=True")
    assert greedy.temperature == 0.0 and sampling(stage).temperature == 1.0


@shows(f"{ROLLOUT}.stop", f"{ROLLOUT}.stop_token_ids")
@shows("rollout.stop", command="generate")
@pytest.mark.parametrize("stop", [["###"], ["a b", "\n", " "]])
def test_responses_end_at_the_texts_of_the_keys(stage: Stage, stop: list[str]) -> None:
    written = f"[{','.join(repr(text) if text.isprintable() else chr(39) + text + chr(39) for text in stop)}]"
    for validation in (False, True):
        found = sampling(stage, f"{ROLLOUT}.stop={written}", f"{ROLLOUT}.stop_token_ids=[3]", validation=validation)
        assert (found.stop, found.stop_token_ids) == (tuple(stop), (3,))
    assert generate._sampling(generation(stage, f"rollout.stop={written}"), "uid", 0).stop == tuple(stop)


@pytest.mark.parametrize("stop", ["['']", "['a','']", "''"])
def test_an_empty_text_would_end_everything_and_is_refused(stage: Stage, stop: str) -> None:
    with pytest.raises(UserError, match=r"rollout\.stop: .* empty"):
        sampling(stage, f"{ROLLOUT}.stop={stop}")
    with pytest.raises(UserError, match=r"rollout\.stop: .* empty"):
        generation(stage, f"rollout.stop={stop}")


@shows(f"{ROLLOUT}.n", f"{VAL}.n")
def test_each_prompt_gets_so_many_answers(stage: Stage) -> None:
    dumps = [f"trainer.{kind}_data_dir={stage.directory}/run/{kind}" for kind in ("rollout", "validation")]
    more = [f"{ROLLOUT}.n=3", f"{VAL}.n=2", "trainer.test_freq=1", "trainer.total_training_steps=1"]
    run = stage.run_ppo("run", *dumps, *more)
    for lines, n in ((run.lines("rollout/1.jsonl"), 3), (run.lines("validation/1.jsonl"), 2)):
        asked = [line["input"] for line in lines]
        assert all(asked.count(prompt) == n for prompt in asked)


ENGINE = {"max_num_seqs": 3, "max_num_batched_tokens": 60, "max_model_len": 110}
LENGTHS = {"prompt_length": 70, "response_length": 9}


def engine_of(worker: type, config: Any, monkeypatch: pytest.MonkeyPatch, **peers: Any) -> tuple[Any, dict[str, Any]]:
    """A worker whose engine and model are not made, and what its engine was asked for."""
    asked: dict[str, Any] = {}
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=7)))
    made = lambda model, **how: (asked.update(how), SimpleNamespace(**how))[1]  # noqa: E731
    monkeypatch.setattr(rollout_engines, "HFEngine", made)
    monkeypatch.setattr(rollout_engines, "PreTrainedModel", SimpleNamespace)
    monkeypatch.setattr(rollout_worker, "end_tokens", lambda *_: set())
    monkeypatch.setattr(rollout_worker, "load_tokenizer", lambda path, **how: asked.update(read=(path, how)))
    monkeypatch.setattr(rollout_worker, "load_causal_lm", lambda source: (asked.update(source=source), model)[1])
    options = SimpleNamespace(compute_dtype=None)
    engine = SimpleNamespace(sharding=SimpleNamespace(whole=True), model=model, options=options)
    actor = SimpleNamespace(engine=engine, tokenizer=None)
    return worker(config, RunSettings(CPU), {"actor": actor}), asked


@shows(*(f"{ROLLOUT}.{name}" for name in (*ENGINE, "free_cache_engine", "prompt_length", "enable_chunked_prefill")))
def test_the_engine_has_the_limits_of_the_keys(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{ROLLOUT}.{name}={value}" for name, value in ENGINE.items()]
    keys += [f"{ROLLOUT}.free_cache_engine=False", f"{ROLLOUT}.enable_chunked_prefill=False"]
    config = load("ppo", stage.ppo("run", *keys)).config
    worker, asked = engine_of(rollout_worker.RolloutWorker, config, monkeypatch)
    assert {name: asked[name] for name in ENGINE} == ENGINE and not worker.free_cache
    assert asked["enable_chunked_prefill"] is False
    longer = load("ppo", stage.ppo("run", "data.max_prompt_length=200")).config
    worker, asked = engine_of(rollout_worker.RolloutWorker, longer, monkeypatch)
    assert asked["max_model_len"] == 208 and worker.free_cache and asked["enable_chunked_prefill"]


GENERATE = ("rollout.dtype=float32", "trainer.device=cpu")


def generation(stage: Stage, *more: str) -> Any:
    paths = (f"model.path={stage.model}", f"data.path={stage.data}/test.parquet")
    return load("generate", [*paths, f"data.output_path={stage.directory}/out.jsonl", *GENERATE, *more]).config


@shows(*(f"rollout.{name}" for name in (*ENGINE, *LENGTHS)), "rollout.dtype", command="generate")
@shows("model.path", "model.external_lib", "model.trust_remote_code", "data.trust_remote_code", command="generate")
@shows("model.override_config.attn_implementation", "model.override_config.model_config", command="generate")
def test_the_model_and_the_engine_of_a_generation_are_those_of_the_keys(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"rollout.{name}={value}" for name, value in {**ENGINE, "dtype": "bfloat16"}.items()]
    keys += ["model.external_lib=json", "model.trust_remote_code=True", "data.trust_remote_code=False"]
    override = "model.override_config"
    keys += [f"{override}.attn_implementation=eager", f"{override}.model_config={{attention_dropout:0.25}}"]
    _, asked = engine_of(rollout_worker.GenerationWorker, generation(stage, *keys), monkeypatch)
    assert {name: asked[name] for name in ENGINE} == ENGINE
    source = asked["source"]
    assert (source.path, source.external_lib, source.trust_remote_code) == (str(stage.model), "json", True)
    assert source.attn_implementation == "eager" and source.config_overrides == {"attention_dropout": 0.25}
    assert asked["read"] == (str(stage.model), {"trust_remote_code": False})
    _, plain = engine_of(rollout_worker.GenerationWorker, generation(stage), monkeypatch)
    assert (plain["compute_dtype"], plain["source"].dtype) == (torch.float32, torch.float32)
    assert plain["max_model_len"] == 1024 and plain["source"].attn_implementation == "sdpa"
    lengths = [f"rollout.{name}={value}" for name, value in LENGTHS.items()]
    _, short = engine_of(rollout_worker.GenerationWorker, generation(stage, *lengths), monkeypatch)
    assert short["max_model_len"] == 79


@shows("model.override_config.moe_config.freeze_moe_router", command="generate")
def test_nothing_is_trained_in_a_generation_so_routers_may_be_frozen(stage: Stage) -> None:
    keys = ("model.override_config.moe_config.freeze_moe_router=True",)
    source = rollout_worker._generation_source(generation(stage, *keys), RunSettings(CPU), torch.float32)
    assert source.freeze_router


def tracked(stage: Stage, command: str, *more: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the loggers of a run are made with."""
    asked: dict[str, Any] = {}

    def tracker(names: list[str], **how: Any) -> Any:
        asked.update(how, names=names)
        return SimpleNamespace(close=lambda: None)

    loaded = load(command, getattr(stage, command)("run", *more))
    directory = Path(loaded.config.trainer.default_local_dir)
    if command == "ppo":
        monkeypatch.setattr(ppo_setup, "Tracker", tracker)
        empty: dict[str, Any] = {field.name: None for field in dataclasses.fields(Setup)}
        with Setup(**{**empty, "loaded": loaded, "directory": directory}).track(0, {}):
            pass
    else:
        monkeypatch.setattr(sft, "Tracker", tracker)
        trainer: Any = SimpleNamespace(config=loaded.config, loaded=loaded, directory=directory)
        sft.SFTTrainer._tracker(trainer, 0, {})
    return asked


TOLD = ("trainer.project_name", "trainer.experiment_name", "trainer.logger", "trainer.default_local_dir")


@shows(*TOLD)
@shows(*TOLD, command="sft")
@pytest.mark.parametrize("command", ["ppo", "sft"])
def test_loggers_are_told_the_names_of_the_run(stage: Stage, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stage.directory / "here"
    keys = ("trainer.project_name=a", "trainer.experiment_name=b", "trainer.logger=[console]")
    asked = tracked(stage, command, *keys, f"trainer.default_local_dir={folder}", monkeypatch=monkeypatch)
    assert (asked["project"], asked["experiment"], asked["names"]) == ("a", "b", ["console"])
    assert asked["directory"] == folder and (folder / "config.yaml").exists()


@shows("actor_rollout_ref.actor.checkpoint.load_contents", "critic.checkpoint.load_contents")
def test_what_is_loaded_may_be_less_than_what_was_saved(stage: Stage) -> None:
    roles = ("actor_rollout_ref.actor", "critic")
    saved = [f"{role}.checkpoint.save_contents=[model]" for role in roles]
    stage.run_ppo("run", *saved, "trainer.total_training_steps=1", "trainer.save_freq=1", estimator="gae")
    for role in roles:
        (other,) = set(roles) - {role}
        with pytest.raises(UserError, match=r"optimizer\.pt"):
            stage.run_ppo("run", f"{other}.checkpoint.load_contents=[model]", estimator="gae")
    run: Run = stage.run_ppo("run", *(f"{role}.checkpoint.load_contents=[model]" for role in roles), estimator="gae")
    assert [line["step"] for line in run.lines()] == [1, 2]


@shows("critic.enable")
def test_a_critic_is_trained_where_the_estimator_needs_one_and_may_be_asked_for(stage: Stage) -> None:
    def trains(estimator: str, *more: str) -> bool:
        return load("ppo", stage.ppo("run", *more, estimator=estimator)).config.trains_critic

    assert trains("gae") and trains("gae", "critic.enable=True") and not trains("grpo", "critic.enable=False")
    with pytest.raises(UserError, match=r"critic\.enable.*needs values"):
        trains("gae", "critic.enable=False")


def test_a_run_by_other_names_is_the_run_by_the_keys_that_count(stage: Stage) -> None:
    def weights(name: str, *more: str) -> Any:
        return stage.run_ppo(name, *more, "trainer.total_training_steps=1", "trainer.save_freq=1").weights(1)

    actor, own = "actor_rollout_ref.actor", "custom_reward_function.name=with_extras"
    sgd = (f"{actor}.optim.optimizer=SGD", f"{actor}.optim.lr=10")
    ours = weights("ours", *sgd, own, f"{actor}.grad_clip=0.01", f"{actor}.ppo_micro_batch_size_per_gpu=2")
    theirs = (f"reward.{own}", f"{actor}.optim.clip_grad=0.01", f"{actor}.ppo_micro_batch_size=2")
    assert same_weights(ours, weights("theirs", *sgd, *theirs))
    assert not same_weights(ours, weights("unclipped", *sgd, own))
