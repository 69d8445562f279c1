"""Whole fine-tuning runs in miniature."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hone.data.files import read_rows
from tests.shows import shows
from tests.trainers.runs import Stage, difference, same_weights

LOGGED = {
    "train/loss", "train/grad_norm", "train/lr", "training/global_step", "training/epoch", "timing_s/step",
    "perf/total_num_tokens", "perf/throughput",
}  # fmt: skip


@shows("trainer.test_freq", "trainer.total_training_steps", "data.train_batch_size", command="sft")
def test_a_run_learns_and_leaves_a_model_that_transformers_loads(stage: Stage) -> None:
    run = stage.run_sft("run", "trainer.total_training_steps=12", "trainer.save_freq=12", "trainer.test_freq=6")
    lines = run.lines()
    assert all(line.keys() >= LOGGED and all(map(math.isfinite, line.values())) for line in lines)
    assert lines[-1]["train/loss"] < lines[0]["train/loss"] - 0.3
    assert [line["step"] for line in lines if "val/loss" in line] == [6, 12]
    assert [line["training/epoch"] for line in lines] == [0] * 8 + [1] * 4
    folder = run.directory / "global_step_12" / "model" / "huggingface"
    saved = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(saved[name], value) for name, value in run.weights(12, "model").items())
    assert AutoTokenizer.from_pretrained(folder).chat_template


def test_the_validation_loss_is_the_mean_over_all_answer_tokens(stage: Stage) -> None:
    run = stage.run_sft("run", "trainer.test_freq=2", "data.val_max_samples=5", "data.shuffle=False")
    model = AutoModelForCausalLM.from_pretrained(run.directory / "global_step_2" / "model" / "huggingface").eval()
    tokenizer = AutoTokenizer.from_pretrained(stage.model)
    rows, total, count = read_rows(stage.data / "test.parquet"), 0.0, 0
    for index in range(5):
        prompt, answer = rows[index]["prompt"], {"role": "assistant", "content": rows[index]["answer"]}
        start = len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False))
        ids = torch.tensor([tokenizer.apply_chat_template([*prompt, answer], return_dict=False)])
        with torch.no_grad():
            logprobs = model(ids).logits[0, start - 1 : -1].log_softmax(-1)
        total -= float(logprobs.gather(1, ids[0, start:, None]).sum())
        count += ids.shape[1] - start
    assert run.lines()[-1]["val/loss"] == pytest.approx(total / count, rel=1e-5)


def test_parameters_do_not_depend_on_how_batches_are_cut(stage: Stage) -> None:
    sgd = ("optim.optimizer=SGD", "optim.lr=0.1")
    padded = stage.run_sft("padded", *sgd)
    ways = [
        ["data.micro_batch_size_per_gpu=1"],
        ["data.micro_batch_size_per_gpu=3", "model.use_remove_padding=True"],
        ["data.use_dynamic_bsz=True", "data.max_token_len_per_gpu=100", "model.use_remove_padding=True"],
        ["model.use_fused_kernels=True", "model.enable_gradient_checkpointing=True"],
    ]
    for number, changes in enumerate(ways):
        run = stage.run_sft(f"way{number}", *sgd, *changes)
        assert difference(padded.weights(role="model"), run.weights(role="model")) < 1e-5, changes


@shows("data.seed", "data.shuffle", command="sft")
@pytest.mark.parametrize(
    "change",
    ["data.seed=7", "data.shuffle=False", "optim.lr=2e-3", "optim.lr_scheduler=constant", "optim.clip_grad=1e-3",
     "optim.weight_decay=0.5", "optim.betas=[0.5,0.6]", "data.truncation=left", "optim.lr_warmup_steps=2"],
)  # fmt: skip
def test_an_option_changes_the_weights(stage: Stage, change: str) -> None:
    common = ["data.max_length=48", "data.truncation=right", "optim.lr_scheduler=linear"]
    plain, changed = stage.run_sft("plain", *common), stage.run_sft("changed", *common, change)
    assert not same_weights(plain.weights(role="model"), changed.weights(role="model"))


@pytest.mark.parametrize("longest", [6, 9, 30])
def test_rows_cut_on_the_left_train_wherever_the_cut_falls(stage: Stage, longest: int) -> None:
    run = stage.run_sft("run", "data.truncation=left", f"data.max_length={longest}", "trainer.test_freq=1")
    assert all(math.isfinite(line[name]) for line in run.lines() for name in ("train/loss", "val/loss"))


@shows("trainer.save_freq", "trainer.max_ckpt_to_keep", "trainer.checkpoint.save_contents", command="sft")
def test_only_so_many_checkpoints_are_kept(stage: Stage) -> None:
    run = stage.run_sft(
        "run", "trainer.save_freq=1", "trainer.total_training_steps=3", "trainer.max_ckpt_to_keep=2",
        "trainer.checkpoint.save_contents=[model]",
    )  # fmt: skip
    assert sorted(path.name for path in run.directory.glob("global_step_*")) == ["global_step_2", "global_step_3"]
    assert [path.name for path in (run.directory / "global_step_3" / "model").iterdir()] == ["model.safetensors"]


@shows("trainer.total_epochs", command="sft")
def test_epochs_give_the_number_of_steps(stage: Stage) -> None:
    sizes = ("data.train_max_samples=17", "trainer.total_training_steps=null", "trainer.total_epochs=2")
    run = stage.run_sft("run", *sizes, "trainer.checkpoint.save_contents=[model]")
    assert [line["training/epoch"] for line in run.lines()] == [0, 0, 1, 1]  # 17 // 8 steps each


@shows("trainer.resume_mode", "trainer.resume_from_path", command="sft")
def test_a_run_begins_anew_or_goes_on_from_a_named_checkpoint(stage: Stage) -> None:
    often = ("trainer.save_freq=1", "trainer.checkpoint.save_contents=[model,optimizer,extra]")
    whole = stage.run_sft("whole", *often)
    named = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={whole.directory}/global_step_1")
    branch = stage.run_sft("branch", *often, *named)
    assert branch.results() == whole.results()  # the checkpoint brings the line of its own step
    assert same_weights(whole.weights(2, "model"), branch.weights(2, "model"))
    assert not (branch.directory / "global_step_1").exists()
    anew = stage.run_sft("whole", *often, "trainer.resume_mode=disable", "trainer.total_training_steps=1")
    assert [line["step"] for line in anew.lines()] == [1]
