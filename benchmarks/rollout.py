"""Tokens per second of the hf engine beside transformers' generate and vLLM, on the same requests in one run.

    python benchmarks/rollout.py [--threads 2] [--rounds 3] [--skip-small] [--skip-vllm]

Random Qwen3 models: tiny (0.9 M parameters) and small (27 M, most of them in its vocabulary of 32,000), in fp32 at
temperature 1. Uniform: 64 prompts (small: 16) of 24 to 40 tokens, 8 responses of 128 tokens (small: 64) each. Spread:
the same prompts, responses of 2 to 51 tokens, 12 in the mean; generate goes on until the longest of its batch is done.
What counts are the tokens of the responses. hf and another work in turns, each in its own process; the first round does
not count. vLLM is measured where it is installed (`make test-vllm` sets up such an environment in .venv-vllm).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SAMPLES, LONGEST_SPREAD, MEAN_SPREAD = 8, 51, 12
MODEL_LENGTH = 256


@dataclass(frozen=True)
class Model:
    hidden: int
    layers: int
    vocabulary: int
    prompts: int
    uniform: int  # tokens of a response

    def save(self, folder: Path) -> None:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        config = Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=3 * self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 32,
            num_key_value_heads=self.hidden // 64,
            head_dim=32,
            max_position_embeddings=MODEL_LENGTH,
            tie_word_embeddings=True,
            eos_token_id=None,
            bos_token_id=None,
        )
        Qwen3ForCausalLM(config).save_pretrained(folder)


MODELS = {"tiny": Model(128, 4, 512, 64, 128), "small": Model(512, 4, 32_000, 16, 64)}


@dataclass(frozen=True)
class Work:
    """Prompts of which each is answered SAMPLES times, and the length of every response."""

    prompts: list[list[int]]
    lengths: list[int]

    @classmethod
    def of(cls, model: Model, kind: str) -> Work:
        draw = random.Random(0)
        prompts = [
            [draw.randrange(model.vocabulary) for _ in range(draw.randint(24, 40))] for _ in range(model.prompts)
        ]
        count = model.prompts * SAMPLES
        spread = [min(LONGEST_SPREAD, 2 + int(draw.expovariate(1 / (MEAN_SPREAD - 2)))) for _ in range(count)]
        return cls(prompts, spread if kind == "spread" else [model.uniform] * count)


Generate = Callable[[Work], int]


def with_engine(engine: Any) -> Generate:
    """Every request at once, as agents send them."""
    from hone.rollout.interface import Sampling

    loop = asyncio.new_event_loop()

    async def all_of(work: Work) -> int:
        calls = [
            engine.generate(work.prompts[i // SAMPLES], Sampling(max_tokens=length, ignore_eos=True, seed=i))
            for i, length in enumerate(work.lengths)
        ]
        return sum(len(completion.token_ids) for completion in await asyncio.gather(*calls))

    return lambda work: loop.run_until_complete(all_of(work))


def hf(folder: Path, model: Model) -> Generate:
    from transformers import AutoModelForCausalLM

    from hone.rollout.hf import HFEngine

    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    return with_engine(HFEngine(loaded, eos_token_ids=(), max_model_len=MODEL_LENGTH))


def vllm(folder: Path, model: Model) -> Generate:
    from hone.rollout.vllm.arguments import EngineArguments
    from hone.rollout.vllm.engine import VLLMEngine

    arguments = EngineArguments(
        model=str(folder),
        dtype="float32",
        seed=0,
        max_model_len=MODEL_LENGTH,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        enable_sleep_mode=False,
        hf_overrides={},
        gpu_memory_utilization=0.1,
        enable_chunked_prefill=False,  # as hone sets it on a CPU
    )
    return with_engine(VLLMEngine(arguments, eos_token_ids=()))


def transformers(folder: Path, model: Model) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM, StoppingCriteriaList

    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")

    def generate(work: Work) -> int:
        width, lengths = max(map(len, work.prompts)), torch.tensor(work.lengths)
        ids = torch.tensor([[0] * (width - len(p)) + p for p in work.prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in work.prompts])
        loaded.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            num_return_sequences=SAMPLES,
            max_new_tokens=max(work.lengths),
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([lambda ids, scores, **_: ids.shape[1] - width >= lengths]),
        )
        return sum(work.lengths)

    return generate


SIDES = {"hf": hf, "transformers": transformers, "vllm": vllm}


def serve(side: str, folder: Path, model: Model) -> None:
    """Runs as a process of its own: all work of the kind named by a line on stdin, tokens per second on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the libraries print goes to stderr
    generate = SIDES[side](folder, model)
    gc.freeze()  # as hone's runs do: no full collection looks through what was imported
    for line in sys.stdin:
        work = Work.of(model, line.strip())
        begun = time.perf_counter()
        tokens = generate(work)
        print(tokens / (time.perf_counter() - begun), file=answers, flush=True)


class Side:
    def __init__(self, name: str, folder: Path, model: str, threads: int) -> None:
        command = [sys.executable, __file__, "--side", name, "--folder", str(folder), "--model", model]
        command += ["--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tokens_per_second(self, kind: str) -> float:
        assert self.process.stdin and self.process.stdout
        print(kind, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a side of the benchmark ended early; its error stands above")
        return float(line)

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(model: str, names: list[str], folder: Path, options: argparse.Namespace) -> None:
    MODELS[model].save(folder)
    sides = {name: Side(name, folder, model, options.threads) for name in names}
    for kind in ("uniform", "spread"):
        rates: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(options.rounds + 1):
            for name, side in sides.items():
                rates[name].append(side.tokens_per_second(kind))
        report(f"{model}, {kind}", {name: rate[1:] for name, rate in rates.items()})
    for side in sides.values():
        side.end()


def report(title: str, rates: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(rate) for name, rate in rates.items()}
    print(f"{title:15} " + ", ".join(f"{name} {rate:,.0f} tokens/s" for name, rate in medians.items()))
    other = next(name for name in medians if name != "hf")
    ratio = statistics.median(a / b for a, b in zip(rates["hf"], rates[other], strict=True))
    print(f"{'':15} hf is {ratio:.2f} times as fast as {other}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-small", action="store_true")
    parser.add_argument("--skip-vllm", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        import torch

        torch.set_num_threads(options.threads)
        serve(options.side, options.folder, MODELS[options.model])
        return
    others = ["transformers"]
    if not options.skip_vllm and importlib.util.find_spec("vllm"):
        others.append("vllm")
    for model in ["tiny"] if options.skip_small else list(MODELS):
        for other in others:  # apart: vLLM's processes are busy while they wait
            with tempfile.TemporaryDirectory() as name:
                measure(model, ["hf", other], Path(name), options)


if __name__ == "__main__":
    main()
