"""`hone generate`: responses for a file of prompts, written beside the rows they answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hone.agents import Surroundings, Trajectory
from hone.agents.sanity import decode
from hone.cluster import Executor, Role, WorkerGroup
from hone.config import Loaded
from hone.config.schema.generation import GenerationConfig, GenerationRolloutConfig
from hone.data.prompts import PromptDataset
from hone.data.responses import Answers, ResponseFile, check_ending
from hone.errors import UserError
from hone.models.load import load_tokenizer
from hone.rollout.interface import Sampling
from hone.tracking.console import console, progress_bar
from hone.trainers.row_checks import load_conversations, row_check
from hone.trainers.sampling import trajectory_seed
from hone.workers.rollout import GenerationWorker, RolloutTask
from hone.workers.rollout_engines import ranks_per_engine
from hone.workers.settings import RunSettings


def generate(loaded: Loaded, executor: Executor) -> None:
    """Cheap things first: what can be wrong with the rows or the output is found before a model is loaded."""
    config: GenerationConfig = loaded.config
    path, n = Path(config.data.output_path).expanduser(), config.data.n_samples
    check_ending(path)
    _check_model_length(config.rollout)
    tokenizer = load_tokenizer(config.model.path, trust_remote_code=config.data.trust_remote_code)
    surroundings = load_conversations(config)
    prompts = _prompts(config, tokenizer, surroundings)
    columns = _columns(config.rollout)
    output = ResponseFile(path, prompts.rows, prompts.kept, columns)
    rollout = _start(loaded, executor)
    tokens, begun = 0, time.perf_counter()
    with Answers(output, n) as answers, progress_bar() as bar:
        task = bar.add_task("generating", total=len(prompts) * n)
        for index, trajectory in _trajectories(config, prompts, rollout):
            answer: dict[str, Any] = {"responses": trajectory.text}
            if "trajectories" in columns:
                answer["trajectories"] = _record(trajectory, tokenizer)
            answers.add(index // n, index % n, answer)
            tokens += len(trajectory.response_ids)
            bar.advance(task)
        seconds = time.perf_counter() - begun
        output.write(answers.complete())
    _report(path, {"responses": len(prompts) * n, "tokens": tokens, "seconds": seconds})


def _check_model_length(rollout: GenerationRolloutConfig) -> None:
    longest = rollout.prompt_length + rollout.response_length
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        raise UserError(
            f"rollout.max_model_len={rollout.max_model_len} is too short for rollout.prompt_length + "
            f"rollout.response_length={longest}. Remove it, or lower one of the two."
        )


def _prompts(config: GenerationConfig, tokenizer: PreTrainedTokenizerBase, surroundings: Surroundings) -> PromptDataset:
    return PromptDataset(
        config.data.path,
        tokenizer=tokenizer,
        prompt_key=config.data.prompt_key,
        reward_fn_key=None,
        max_prompt_length=config.rollout.prompt_length,
        max_samples=config.data.max_samples,
        length_key="rollout.prompt_length",
        remedy="Raise rollout.prompt_length, or remove such rows.",
        tools=surroundings.schemas,
        check=row_check(
            scored_by_rules=False,
            surroundings=surroundings if config.rollout.multi_turn.enable else None,
            place="rollout",
        ),
    )


def _trajectories(
    config: GenerationConfig, prompts: PromptDataset, rollout: WorkerGroup
) -> Iterator[tuple[int, Trajectory]]:
    """(i * n + k, the k-th answer to the i-th prompt) as they finish, `data.batch_size` prompts at a time."""
    n, size = config.data.n_samples, config.data.batch_size or len(prompts)
    for start in range(0, len(prompts), size):
        samples = [(i, prompts[i]) for i in range(start, min(start + size, len(prompts)))]
        tasks = [
            RolloutTask(i * n + k, sample, _sampling(config, sample.uid, k)) for i, sample in samples for k in range(n)
        ]
        yield from rollout.stream("rollout", tasks)


def _columns(rollout: GenerationRolloutConfig) -> tuple[str, ...]:
    """Of agents that may do more than answer once, the file holds whole trajectories."""
    several = rollout.multi_turn.enable or rollout.agent.agent_loop_path is not None
    return ("responses", "trajectories") if several else ("responses",)


def _record(trajectory: Trajectory, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """How a response came about. `turns` is its text with special tokens, cut where the model begins or ends to
    speak."""
    mask, ids = np.asarray(trajectory.response_mask), np.asarray(trajectory.response_ids)
    cuts = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)] if len(ids) else []
    return {
        "turns": [
            {"sampled": bool(mask[begin]), "text": decode(tokenizer, ids[begin:end].tolist())}
            for begin, end in pairwise(cuts)
        ],
        "num_turns": trajectory.num_turns,
        "stop_reason": trajectory.stop_reason,
        "turn_rewards": [float(reward) for reward in trajectory.turn_rewards],
        "prompt_ids": np.asarray(trajectory.prompt_ids).tolist(),
        "response_ids": ids.tolist(),
        "response_mask": mask.tolist(),
    }


def _start(loaded: Loaded, executor: Executor) -> WorkerGroup:
    config: GenerationConfig = loaded.config
    device = executor.device(config.trainer.device)
    run = RunSettings(device, seed=config.trainer.seed, user_keys=loaded.user_keys)
    role = Role(GenerationWorker, {"config": config, "run": run}, ranks_per_engine(config))
    return executor.start({"rollout": role})["rollout"]


def _sampling(config: GenerationConfig, uid: str, k: int) -> Sampling:
    rollout = config.rollout
    return Sampling(
        max_tokens=rollout.response_length,
        temperature=rollout.temperature if rollout.do_sample else 0.0,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        ignore_eos=rollout.ignore_eos,
        stop=tuple(rollout.stop),
        seed=trajectory_seed(config.trainer.seed, "generate", uid, k),
    )


def _report(path: Path, figures: dict[str, float]) -> None:
    """The run's figures, which also go to a file of the output's name ending in .stats.json."""
    speed = figures["tokens"] / max(figures["seconds"], 1e-9)
    path.with_suffix(".stats.json").write_text(json.dumps({**figures, "tokens_per_second": speed}))
    console.print(
        f"{figures['responses']} responses, {figures['tokens']} tokens in {figures['seconds']:.1f} s "
        f"({speed:.0f} tokens/s) -> {path}"
    )
