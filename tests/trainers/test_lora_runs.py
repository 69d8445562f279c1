"""Whole runs that train adapters: they learn, sample what they train on, and leave what others can load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from hone.training.checkpoint import ADAPTER
from tests.shows import shows
from tests.trainers.runs import ACTOR, MODEL, ROLLOUT, Run, Stage, same_weights
from tests.trainers.test_resume import FOUR, KILLS, PPO, killed_and_resumed

peft = pytest.importorskip("peft")
LORA = (f"{MODEL}.lora_rank=4", f"{MODEL}.lora_alpha=8")
CRITIC = ("critic.model.lora_rank=4", "critic.model.lora_alpha=8")
KL = (f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.1")
CONTENTS = f"{ACTOR}.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
KEPT = f"{ACTOR}.checkpoint.load_contents=[model,optimizer,extra]"


def adapter_folder(run: Run, step: int = 2, role: str = "actor") -> Path:
    return run.directory / f"global_step_{step}" / role / ADAPTER


@shows(f"{MODEL}.lora_rank", f"{MODEL}.lora_alpha")
@pytest.mark.parametrize("kl", ["low_var_kl", "full"])
def test_a_run_trains_an_adapter_that_others_load(stage: Stage, kl: str) -> None:
    run = stage.run_ppo("run", *LORA, *KL, f"{ACTOR}.kl_loss_type={kl}", CONTENTS, KEPT)
    for line in run.lines():
        assert line["training/rollout_probs_diff_max"] < 1e-5
        assert line["actor/grad_norm"] > 0 and line["actor/kl_loss"] >= 0
    assert run.lines()[1]["actor/kl_loss"] > 1e-7
    config = json.loads((adapter_folder(run) / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], len(config["target_modules"])) == (4, 8, 7)
    base = AutoModelForCausalLM.from_pretrained(stage.model)
    merged = peft.PeftModel.from_pretrained(base, adapter_folder(run)).merge_and_unload().state_dict()
    plain = AutoModelForCausalLM.from_pretrained(run.directory / "global_step_2" / "actor" / "huggingface")
    begun = AutoModelForCausalLM.from_pretrained(stage.model).state_dict()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(tensor, merged[name], rtol=1e-6, atol=1e-7)
        assert torch.equal(tensor, begun[name]) == ("_proj" not in name)


def test_the_reference_is_the_model_that_the_run_began_with(stage: Stage) -> None:
    """With an adapter to go on from too."""
    kl = ("algorithm.use_kl_in_reward=True",)
    first = stage.run_ppo("first", *LORA, *kl)
    more = stage.run_ppo("more", f"{MODEL}.lora_adapter_path={adapter_folder(first)}", *kl)
    for run in (first, more):
        penalties = [line["actor/reward_kl_penalty"] for line in run.lines()]
        assert penalties[0] == pytest.approx(0, abs=1e-7) and penalties[1] != 0


@shows(f"{MODEL}.lora_adapter_path")
def test_a_run_goes_on_from_a_trained_adapter(stage: Stage) -> None:
    first = stage.run_ppo("first", *LORA)
    still = stage.run_ppo("still", f"{MODEL}.lora_adapter_path={adapter_folder(first)}", f"{ACTOR}.optim.lr=0")
    more = stage.run_ppo("more", f"{MODEL}.lora_adapter_path={adapter_folder(first)}")
    assert same_weights(still.weights(), first.weights())
    assert not same_weights(more.weights(), first.weights())


@shows(f"{MODEL}.target_modules", f"{MODEL}.exclude_modules")
def test_the_layers_with_an_adapter_are_chosen(stage: Stage) -> None:
    chosen = stage.run_ppo("chosen", *LORA, f"{MODEL}.target_modules=[q_proj,v_proj]")
    left = stage.run_ppo("left", *LORA, f"{MODEL}.exclude_modules=[q_proj,v_proj]")
    layers = [{name.split(".")[-3] for name in run.weights()} for run in (chosen, left)]
    assert layers == [{"q_proj", "v_proj"}, {"k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}]


@shows("critic.model.lora_rank", "critic.model.lora_alpha", "critic.model.lora_adapter_path")
def test_a_critic_trains_an_adapter_and_its_head(stage: Stage) -> None:
    run = stage.run_ppo("run", *CRITIC, estimator="gae")
    weights = run.weights(role="critic")
    assert len(weights) == 14 * 2 + 2 and weights["base_model.model.score.weight"].any()  # the head has a bias
    assert all(weights[name].any() for name in weights if "lora_B" in name)
    assert "model.embed_tokens.weight" in run.weights()  # the policy trains all of its weights
    base = AutoModelForTokenClassification.from_pretrained(stage.model, num_labels=1)
    theirs = peft.PeftModel.from_pretrained(base, adapter_folder(run, role="critic")).state_dict()
    loaded = {name.replace(".modules_to_save", "").replace(".default", ""): tensor for name, tensor in theirs.items()}
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    path = f"critic.model.lora_adapter_path={adapter_folder(run, role='critic')}"
    still = stage.run_ppo("still", path, "critic.optim.lr=0", estimator="gae")
    assert same_weights(still.weights(role="critic"), weights)


@shows("critic.model.target_modules", "critic.model.exclude_modules")
def test_the_layers_of_a_critic_are_chosen(stage: Stage) -> None:
    choice = ("critic.model.target_modules=[q_proj,v_proj]", "critic.model.exclude_modules=[v_proj]")
    run = stage.run_ppo("run", *CRITIC, *choice, "trainer.total_training_steps=1", estimator="gae")
    layers = {name.split(".")[-3] for name in run.weights(1, "critic") if "lora" in name}
    assert layers == {"q_proj"}


DIGITS = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return sum(c in "0123456789" for c in solution_str) / 8
"""


@pytest.mark.slow
def test_a_run_learns(stage: Stage) -> None:
    stage.reward.write_text(DIGITS)
    sizes = ("data.train_batch_size=8", f"{ACTOR}.ppo_mini_batch_size=8", f"{ROLLOUT}.n=8")
    rate = (f"{ACTOR}.optim.lr=1e-2", "trainer.total_training_steps=30", "trainer.save_freq=-1")
    lines = stage.run_ppo("run", *LORA, f"{ACTOR}.use_kl_loss=True", *sizes, *rate).lines()
    scores = [line["critic/score/mean"] for line in lines]
    assert sum(scores[-5:]) / 5 > sum(scores[:5]) / 5 + 0.3, scores
    assert max(line["training/rollout_probs_diff_max"] for line in lines) < 1e-5


@pytest.mark.parametrize("estimator", ["grpo", pytest.param("gae", marks=pytest.mark.slow)])
def test_a_killed_run_ends_in_the_same_adapter_and_metrics(
    stage: Stage, estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [*FOUR, *PPO[estimator], *LORA, *CRITIC]
    whole = stage.run_ppo("whole", *more, estimator=estimator)
    kill = KILLS["after the checkpoint"]
    resumed = killed_and_resumed(lambda: stage.run_ppo("cut", *more, estimator=estimator), kill, monkeypatch)
    for role in ("actor", "critic") if estimator == "gae" else ("actor",):
        assert same_weights(whole.weights(4, role), resumed.weights(4, role)), role
    assert whole.results() == resumed.results()


@shows("model.lora_rank", "model.lora_alpha", "model.target_modules", command="sft")
def test_fine_tuning_trains_an_adapter(stage: Stage) -> None:
    lora = ("model.lora_rank=4", "model.lora_alpha=8", "model.target_modules=[q_proj,down_proj]")
    steps = ("trainer.total_training_steps=12", "trainer.save_freq=12", "optim.lr=1e-2")
    run = stage.run_sft("run", *lora, *steps, "model.enable_gradient_checkpointing=True")
    assert run.lines()[-1]["train/loss"] < run.lines()[0]["train/loss"] - 0.3
    folder = run.directory / "global_step_12" / "model"
    base = AutoModelForCausalLM.from_pretrained(stage.model)
    merged = peft.PeftModel.from_pretrained(base, folder / ADAPTER).merge_and_unload().state_dict()
    for name, tensor in AutoModelForCausalLM.from_pretrained(folder / "huggingface").state_dict().items():
        torch.testing.assert_close(tensor, merged[name], rtol=1e-6, atol=1e-7)
    assert {name.split(".")[-3] for name in run.weights(12, "model")} == {"q_proj", "down_proj"}
    policy = stage.run_ppo("policy", f"{MODEL}.lora_adapter_path={folder / ADAPTER}")  # from fine-tuning to RL
    assert policy.weights().keys() == run.weights(12, "model").keys()
