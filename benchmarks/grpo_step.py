"""One GRPO step of 64 prompts x 8 samples x 32 new tokens on the demo's model, beside TRL's GRPOTrainer in one run.

    python benchmarks/grpo_step.py [--threads 2] [--steps 5] [--skip-trl]

Equal work: the same random weights, the same prompts, no early end (every response has 32 tokens), one optimiser step
per rollout, no reference model, a reward by rule. Steps of the two alternate, so that both see the same machine.
TRL is an extra of this benchmark only: pip install "hone-rl[bench]".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

PROMPTS, SAMPLES, NEW_TOKENS, TOKENS_PER_MICRO_BATCH = 64, 8, 32, 2048
PARTS = ("gen", "old_log_prob", "update_actor")


def prepare(directory: Path) -> tuple[Path, Path]:
    """The demo's data and its tiny model with random weights."""
    from hone.data.arithmetic import write_arithmetic
    from hone.data.files import read_rows
    from hone.models.tiny import make_tiny_model

    train, _ = write_arithmetic(directory / "data", train_size=2000, test_size=10)
    rows = read_rows(str(train))
    texts = [row["prompt"][0]["content"] + " " + row["answer"] for row in rows]
    return train, make_tiny_model(directory / "model", texts=texts)


def hone_steps(train: Path, model: Path, directory: Path) -> Iterator[dict[str, float]]:
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
        f"{actor}.use_dynamic_bsz=True",
        f"{actor}.ppo_max_token_len_per_gpu={TOKENS_PER_MICRO_BATCH}",
        f"{rollout}.name=hf",
        f"{rollout}.n={SAMPLES}",
        f"{rollout}.ignore_eos=True",
        "trainer.n_gpus_per_node=1",
        "trainer.logger=[]",
        f"trainer.default_local_dir={directory}/hone",
    ]
    trainer = PPOTrainer(load("ppo", overrides), LocalExecutor())
    for step in range(1_000):
        timer = Timer()
        with timer("step"):
            trainer.train_step(step, timer)
        yield dict(timer.seconds)


def trl_steps(train: Path, model: Path, directory: Path) -> Iterator[dict[str, float]]:
    """Seconds of TRL's training step; its generation is timed inside."""
    import threading
    from queue import Queue

    asked: Queue[bool] = Queue()
    answers: Queue[Any] = Queue()
    threading.Thread(target=_train_with_trl, args=(train, model, directory, asked, answers), daemon=True).start()
    while True:
        asked.put(True)
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        yield answer


def _train_with_trl(train: Path, model: Path, directory: Path, asked: Any, answers: Any) -> None:
    """Runs TRL's own loop in a thread, one step whenever it is asked for one."""
    try:
        _trl_trainer(train, model, directory, asked, answers).train()
    except BaseException as error:
        answers.put(error)


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
        output_dir=str(directory / "trl"),
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
    return {name: statistics.median(step.get(name, 0.0) for step in steps) for name in steps[0]}


def report(hone: dict[str, float], trl: dict[str, float] | None) -> None:
    rest = hone["step"] - sum(hone[part] for part in PARTS)
    print(f"hone  step {hone['step']:.2f} s = gen {hone['gen']:.2f} + log-probs {hone['old_log_prob']:.2f} ", end="")
    print(f"+ update {hone['update_actor']:.2f} + rest {rest:.2f} ({rest / hone['step']:.1%})")
    if trl is not None:
        print(f"TRL   step {trl['step']:.2f} s = gen {trl['gen']:.2f} + update {trl['update_actor']:.2f}")
        print(f"hone is {trl['step'] / hone['step']:.2f} times as fast as TRL on equal work")
    print(json.dumps({"hone": hone, "trl": trl}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--skip-trl", action="store_true")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        train, model = prepare(directory)
        runs = {"hone": hone_steps(train, model, directory)}
        if not options.skip_trl:
            runs["trl"] = trl_steps(train, model, directory)
        for run in runs.values():  # the first step pays for warming up
            next(run)
        seconds: dict[str, list[dict[str, float]]] = {who: [] for who in runs}
        for _ in range(options.steps):
            for who, run in runs.items():
                seconds[who].append(next(run))
        report(medians(seconds["hone"]), medians(seconds["trl"]) if "trl" in seconds else None)
        os._exit(0)  # TRL's loop still waits for its next step


if __name__ == "__main__":
    main()
