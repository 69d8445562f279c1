"""`hone generate`: responses for a file of prompts, written beside the rows they answer."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hone.cluster import Executor, Role
from hone.config import Loaded
from hone.config.schema.generation import GenerationConfig
from hone.data.prompts import PromptDataset, Sample
from hone.errors import UserError
from hone.models.load import load_causal_lm, load_tokenizer
from hone.models.precision import pick_device
from hone.rollout.interface import Sampling
from hone.tracking.console import console, progress_bar
from hone.trainers.sampling import trajectory_seed
from hone.workers.rollout import GenerationWorker, RolloutTask
from hone.workers.settings import RunSettings

logger = logging.getLogger(__name__)


def generate(loaded: Loaded, executor: Executor) -> None:
    config: GenerationConfig = loaded.config
    tokenizer = load_tokenizer(config.model.path, trust_remote_code=config.data.trust_remote_code)
    prompts = _prompts(config, tokenizer)
    worker = _start(loaded, executor, tokenizer)
    n, size = config.data.n_samples, config.data.batch_size or len(prompts)
    responses: list[list[str]] = [[""] * n for _ in range(len(prompts))]
    tokens, begun = 0, time.perf_counter()
    with progress_bar() as bar:
        task = bar.add_task("generating", total=len(prompts) * n)
        for start in range(0, len(prompts), size):
            chunk = range(start, min(start + size, len(prompts)))
            samples = [_fitting(prompts, i, config.rollout.prompt_length) for i in chunk]
            tasks = [
                RolloutTask((start + i) * n + k, sample, _sampling(config, sample.uid, k))
                for i, sample in enumerate(samples)
                for k in range(n)
            ]
            for index, trajectory in worker.stream("rollout", tasks):
                responses[index // n][index % n] = tokenizer.decode(trajectory.response_ids, skip_special_tokens=True)
                tokens += len(trajectory.response_ids)
                bar.advance(task)
    seconds = time.perf_counter() - begun
    _write(config, prompts, responses, {"responses": len(prompts) * n, "tokens": tokens, "seconds": seconds})


def _prompts(config: GenerationConfig, tokenizer) -> PromptDataset:  # type: ignore[no-untyped-def]
    return PromptDataset(
        config.data.path,
        tokenizer=tokenizer,
        prompt_key=config.data.prompt_key,
        reward_fn_key=None,
        max_prompt_length=sys.maxsize,
        max_samples=config.data.max_samples,
    )


def _fitting(prompts: PromptDataset, index: int, longest: int) -> Sample:
    sample = prompts[index]
    if len(sample.prompt_ids) > longest:
        raise UserError(
            f"{prompts.rows.where(sample.row)}: the rendered prompt has {len(sample.prompt_ids)} tokens, more than "
            f"rollout.prompt_length={longest}. Raise rollout.prompt_length"
        )
    return sample


def _start(loaded: Loaded, executor: Executor, tokenizer):  # type: ignore[no-untyped-def]
    config: GenerationConfig = loaded.config
    rollout = config.rollout
    run = RunSettings(pick_device(config.trainer.device), seed=config.trainer.seed, user_keys=loaded.user_keys)
    dtype = run.compute_dtype(rollout.dtype, "rollout.dtype")
    source = run.source(
        config.model.path,
        config.model.override_config,
        model_dtype=str(dtype).removeprefix("torch."),
        trust_remote_code=config.model.trust_remote_code,
        external_lib=config.model.external_lib,
    )
    arguments = {
        "model": load_causal_lm(source),
        "tokenizer": tokenizer,
        "max_num_seqs": rollout.max_num_seqs,
        "max_num_batched_tokens": rollout.max_num_batched_tokens,
        "max_model_len": rollout.max_model_len or rollout.prompt_length + rollout.response_length,
        "compute_dtype": dtype,
    }
    return executor.start({"rollout": Role(GenerationWorker, arguments)})["rollout"]


def _sampling(config: GenerationConfig, uid: str, k: int) -> Sampling:
    rollout = config.rollout
    return Sampling(
        max_tokens=rollout.response_length,
        temperature=rollout.temperature if rollout.do_sample else 0.0,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        ignore_eos=rollout.ignore_eos,
        seed=trajectory_seed(config.trainer.seed, "generate", uid, k),
    )


def _write(config: GenerationConfig, prompts: PromptDataset, responses: list[list[str]], figures: dict) -> None:
    """The rows with a `responses` column; the run's figures go to a file of the same name ending in .stats.json."""
    path = Path(config.data.output_path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**prompts.rows[int(row)], "responses": r} for row, r in zip(prompts.kept, responses, strict=True)]
    temporary = path.with_name(f".{path.name}.tmp")
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), temporary)
    else:
        temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    temporary.replace(path)
    speed = figures["tokens"] / max(figures["seconds"], 1e-9)
    path.with_suffix(".stats.json").write_text(json.dumps({**figures, "tokens_per_second": speed}))
    console.print(
        f"{figures['responses']} responses, {figures['tokens']} tokens in {figures['seconds']:.1f} s "
        f"({speed:.0f} tokens/s) -> {path}"
    )
