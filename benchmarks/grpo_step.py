"""One GRPO step of 64 prompts x 8 samples x 32 new tokens on the demo's model, beside TRL's GRPOTrainer in one run.

    python benchmarks/grpo_step.py [--threads 2] [--steps 5] [--skip-trl]

Equal work: the same random weights, the same prompts, no early end (every response has 32 tokens), one optimiser step
per rollout, no reference model, a reward by rule. hone runs twice: each response with its own prompt as in TRL, and
with every prompt computed once (use_prefix_grouper). Steps alternate, so that all see the same machine.
TRL is an extra of this benchmark only: pip install "hone-rl[bench]".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

PROMPTS, SAMPLES, NEW_TOKENS, TOKENS_PER_MICRO_BATCH = 64, 8, 32, 2048
PARTS = ("gen", "update_actor")


def prepare(directory: Path) -> tuple[Path, Path]:
    """The demo's data and its tiny model with random weights."""
    from hone.data.arithmetic import write_arithmetic
    from hone.data.files import read_rows
    from hone.models.tiny import make_tiny_model

    train, _ = write_arithmetic(directory / "data", train_size=2000, test_size=10)
    rows = read_rows(str(train))
    texts = [row["prompt"][0]["content"] + " " + row["answer"] for row in rows]
    return train, make_tiny_model(directory / "model", texts=texts)


def shared_steps(train: Path, model: Path, directory: Path) -> Iterator[dict[str, float]]:
    return hone_steps(train, model, directory, shared=True)


def hone_steps(train: Path, model: Path, directory: Path, *, shared: bool = False) -> Iterator[dict[str, float]]:
    """Seconds of each part of a step, one step at a time."""
    from hone.cluster import LocalExecutor
    from hone.config import load
    from hone.tracking.timing import Timer
    from hone.trainers.ppo import PPOTrainer

    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    overrides = [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={train}",
        "data.val_files=null",
        f"data.train_batch_size={PROMPTS}",
        f"data.max_response_length={NEW_TOKENS}",
        "data.max_prompt_length=96",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=True",
        f"{actor}.ppo_mini_batch_size={PROMPTS}",
        f"{actor}.use_prefix_grouper={shared}",
        f"{actor}.use_dynamic_bsz=True",
        f"{actor}.ppo_max_token_len_per_gpu={TOKENS_PER_MICRO_BATCH}",
        f"{rollout}.name=hf",
        f"{rollout}.n={SAMPLES}",
        f"{rollout}.ignore_eos=True",
        "trainer.n_gpus_per_node=1",
        "trainer.logger=[]",
        f"trainer.default_local_dir={directory}",
    ]
    trainer = PPOTrainer(load("ppo", overrides), LocalExecutor())
    for step in range(1_000):
        timer = Timer()
        with timer("step"):
            trainer.train_step(step, timer)
        yield dict(timer.seconds)


def trl_steps(train: Path, model: Path, directory: Path) -> Iterator[dict[str, float]]:
    """Seconds of TRL's training step and of its generation; its own loop runs in a thread, a step when asked."""
    import threading
    from queue import Queue

    asked: Queue[bool] = Queue()
    answers: Queue[Any] = Queue()

    def train_with_trl() -> None:
        try:
            _trl_trainer(train, model, directory, asked, answers).train()
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=train_with_trl, daemon=True).start()
    while True:
        asked.put(True)
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        yield answer


def _trl_trainer(train: Path, model: Path, directory: Path, asked: Any, answers: Any) -> Any:
    import pyarrow.parquet as pq
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    class Timed(GRPOTrainer):
        def training_step(self, *arguments: Any, **keywords: Any) -> Any:
            asked.get()
            self.generation = 0.0
            self.begun = time.perf_counter()
            return super().training_step(*arguments, **keywords)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            begun = time.perf_counter()
            outputs = super()._generate_and_score_completions(inputs)
            self.generation = time.perf_counter() - begun
            return outputs

    from transformers import TrainerCallback

    class Report(TrainerCallback):
        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            whole = time.perf_counter() - trainer.begun
            answers.put({"step": whole, "gen": trainer.generation, "update_actor": whole - trainer.generation})

    rows = [
        {"prompt": r["prompt"], "truth": r["reward_model"]["ground_truth"]} for r in pq.read_table(train).to_pylist()
    ]
    arguments = GRPOConfig(
        output_dir=str(directory),
        per_device_train_batch_size=PROMPTS * SAMPLES,
        gradient_accumulation_steps=1,
        num_generations=SAMPLES,
        max_completion_length=NEW_TOKENS,
        generation_kwargs={"min_new_tokens": NEW_TOKENS},
        beta=0.0,
        learning_rate=1e-6,
        max_steps=1_000,
        logging_steps=1_000,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
        args=arguments,
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=Dataset.from_list(rows),
        reward_funcs=lambda completions, truth, **_: [
            float(t in c[0]["content"]) for c, t in zip(completions, truth, strict=True)
        ],
        callbacks=[Report()],
    )
    return trainer


def medians(steps: list[dict[str, float]]) -> dict[str, float]:
    for step in steps:
        step["rest"] = step["step"] - sum(step[part] for part in PARTS)
    return {name: statistics.median(step[name] for step in steps) for name in steps[0]}


def report(name: str, seconds: dict[str, float], trl: dict[str, float] | None) -> None:
    rest = seconds["rest"]
    print(
        f"{name:12} step {seconds['step']:.2f} s = gen {seconds['gen']:.2f} + update {seconds['update_actor']:.2f} ",
        end="",
    )
    print(f"+ rest {rest:.2f} ({rest / seconds['step']:.1%})", end="")
    print(f"; {trl['step'] / seconds['step']:.2f} times as fast as TRL" if trl else "")


SIDES = {"hone": hone_steps, "hone-shared": shared_steps, "TRL": trl_steps}


def serve(side: str, directory: Path) -> None:
    """Runs as a process of its own: a step for every line on stdin, its seconds as a line of JSON on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the libraries print goes to stderr
    steps = SIDES[side](directory / "data" / "train.parquet", directory / "model", directory / side)
    for _ in sys.stdin:
        print(json.dumps(next(steps)), file=answers, flush=True)
    os._exit(0)  # TRL's loop still waits for its next step


class Side:
    """One of the two, in its own process: OpenMP spins less as soon as one process has more threads than cores."""

    def __init__(self, name: str, directory: Path, threads: int) -> None:
        command = [sys.executable, __file__, "--side", name, "--directory", str(directory), "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self) -> dict[str, float]:
        assert self.process.stdin and self.process.stdout
        print("step", file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a side of the benchmark ended early; its error stands above")
        return dict(json.loads(line))


def measure(directory: Path, options: argparse.Namespace) -> None:
    prepare(directory)
    sides = {name: Side(name, directory, options.threads) for name in SIDES if name != "TRL" or not options.skip_trl}
    for side in sides.values():  # the first step pays for warming up
        side.step()
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(options.steps):
        for name, side in sides.items():
            seconds[name].append(side.step())
    parts = {name: medians(steps) for name, steps in seconds.items()}
    for name, median in parts.items():
        report(name, median, parts.get("TRL"))
    print(json.dumps(parts))
    for side in sides.values():
        side.process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--skip-trl", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        import torch

        torch.set_num_threads(options.threads)
        serve(options.side, options.directory)
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options)


if __name__ == "__main__":
    main()
