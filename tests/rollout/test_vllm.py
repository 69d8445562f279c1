"""The real vLLM engine on tiny random models: against transformers, the trainer, and weights handed over to it.

Run by `make test-vllm`, in an environment that has vLLM.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hone.batch import Batch
from hone.errors import UserError
from hone.models.names import as_saved
from hone.rollout.hand_over import buckets
from hone.rollout.hf.sampling import RowSampling, penalise_repetition, truncate
from hone.rollout.interface import Completion, Sampling
from hone.rollout.vllm.arguments import EngineArguments
from hone.rollout.watchdog import processes_with
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions
from tests.models_of_families import random_ids
from tests.rollout.test_stop_strings import first_end
from tests.tiny import build_tiny_model

pytest.importorskip("vllm")

from hone.rollout.vllm import engine as engine_module
from hone.rollout.vllm.engine import VLLMEngine

pytestmark = pytest.mark.slow
LENGTHS = [5, 9, 3, 12, 1, 7]
END = 1
SMALL = {"kv_cache_memory_bytes": 2**26}
LOOP = asyncio.new_event_loop()  # vLLM's client belongs to one


def arguments(folder: Path, **options) -> EngineArguments:
    chosen = {
        "dtype": "float32",
        "seed": 0,
        "max_model_len": 128,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 256,
        "enable_chunked_prefill": False,  # as hone has it on a CPU
        "enable_sleep_mode": False,
        "hf_overrides": {},
        "load_format": "dummy",
        "enforce_eager": True,
        "more": SMALL,
        **options,
    }
    return EngineArguments(model=str(folder), **chosen)


def model_of(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def hand_over(engine: VLLMEngine, model, version: int = 0) -> None:
    LOOP.run_until_complete(engine.update_weights(as_saved(model, model.state_dict()).items(), version))


@pytest.fixture(scope="module")
def tied_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="module")
def engine(tied_folder: Path):
    """A tied model that began with random weights and was handed those of its folder."""
    tokenizer = AutoTokenizer.from_pretrained(tied_folder)
    made = VLLMEngine(arguments(tied_folder), eos_token_ids=[END], tokenizer=tokenizer)
    hand_over(made, model_of(tied_folder))
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(tied_folder: Path):
    return model_of(tied_folder)


def prompts(seed: int = 0) -> list[list[int]]:
    return [piece.tolist() for piece in random_ids(LENGTHS, seed).split(LENGTHS)]


def sampled(n: int, **options) -> list[tuple[list[int], Sampling]]:
    chosen = {"max_tokens": 20, **options}
    return [(p, Sampling(seed=100 * i + k, **chosen)) for i, p in enumerate(prompts()) for k in range(n)]


def generate(engine: VLLMEngine, requests: list[tuple[list[int], Sampling]]) -> list[Completion]:
    async def all_of_them():
        return await asyncio.gather(*[engine.generate(p, s) for p, s in requests])

    return LOOP.run_until_complete(all_of_them())


def trainer_logprobs(model, requests, completions, temperature: float) -> torch.Tensor:
    rows = [(p, c.token_ids) for (p, _), c in zip(requests, completions, strict=True)]
    batch = Batch.from_sequences(
        {
            "input_ids": [p + ids for p, ids in rows],
            "response_mask": [[0] * len(p) + [1] * len(ids) for p, ids in rows],
        }
    )
    own = copy.deepcopy(model)  # the trainer changes how attention is called
    trainer = TorchEngine(own, scoring=MicroBatching(4), options=ForwardOptions(temperature=temperature))
    return trainer.forward(batch, {"logprobs"})["logprobs"][batch["response_mask"].bool()]


def distance(model, requests, completions, temperature: float = 1.0) -> float:
    found = torch.tensor([value for c in completions for value in c.logprobs])
    return float((found - trainer_logprobs(model, requests, completions, temperature)).abs().max())


def next_logits(model, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[:, -1]


@pytest.mark.parametrize("stop", [("e", "7"), ("\n", " t"), ("\ufffd",)])
def test_a_completion_ends_with_the_token_that_completes_a_stop_string(engine, tied_folder, stop):
    requests = sampled(6, temperature=1.2, max_tokens=40)
    plain = generate(engine, requests)
    stopped = generate(engine, [(p, dataclasses.replace(s, stop=stop)) for p, s in requests])
    ends = [first_end(AutoTokenizer.from_pretrained(tied_folder), c.token_ids, stop) for c in plain]
    assert any(end is not None and end < len(c.token_ids) for end, c in zip(ends, plain, strict=True))
    for before, after, end in zip(plain, stopped, ends, strict=True):
        assert after.token_ids == before.token_ids[:end]
        assert after.logprobs == pytest.approx(before.logprobs[:end], abs=1e-4)
        assert after.stop_reason == (before.stop_reason if end is None else "stop")


def test_greedy_tokens_equal_transformers_generate(engine, model):
    for penalty in (1.0, 1.4):
        requests = sampled(1, temperature=0.0, repetition_penalty=penalty, ignore_eos=True)
        for (prompt, _), found in zip(requests, generate(engine, requests), strict=True):
            options = {"max_new_tokens": 20, "min_new_tokens": 20, "do_sample": False, "repetition_penalty": penalty}
            expected = model.generate(torch.tensor([prompt]), eos_token_id=511, **options)
            assert found.token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_equal_those_the_trainer_computes(engine, model, temperature):
    requests = sampled(3, temperature=temperature)
    assert distance(model, requests, generate(engine, requests), temperature) < 1e-4


def test_logprobs_of_greedy_tokens_are_the_models_at_temperature_1(engine, model):
    requests = sampled(1, temperature=0.0)
    assert distance(model, requests, generate(engine, requests)) < 1e-4


def test_rows_with_different_options_run_together_each_under_its_own(engine, model):
    options = [
        {"temperature": 0.7},
        {"top_k": 3},
        {"top_p": 0.6, "temperature": 1.5},
        {"min_p": 0.3},
        {"top_k": 8, "top_p": 0.8, "min_p": 0.05, "temperature": 0.9},
        {"repetition_penalty": 1.3},
    ]
    requests = [
        (p, Sampling(max_tokens=12, seed=7 * i, **o)) for i, (p, o) in enumerate(zip(prompts(), options, strict=True))
    ]
    for (prompt, s), completion in zip(requests, generate(engine, requests), strict=True):
        ids = list(prompt)
        for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
            logits = penalise_repetition(next_logits(model, ids), [ids], [s.repetition_penalty]) / s.temperature
            expected = truncate(logits, RowSampling.of([s], torch.device("cpu")))[0].log_softmax(-1)
            assert expected[token].isfinite()
            assert logprob == pytest.approx(expected[token].item(), abs=1e-4)
            ids.append(token)


def test_the_same_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(engine):
    requests = sampled(4)
    together = generate(engine, requests)
    backwards = generate(engine, requests[::-1])[::-1]
    alone = [generate(engine, [request])[0] for request in requests[::5]]
    assert [c.token_ids for c in backwards] == [c.token_ids for c in together]
    assert [c.token_ids for c in alone] == [c.token_ids for c in together[::5]]
    assert len({tuple(c.token_ids) for c in together[:4]}) > 1  # other seeds, other answers
    huge = dataclasses.replace(requests[0][1], seed=2**70 + 5)  # as the fifth call of an agent may have
    assert generate(engine, [(requests[0][0], huge)])


def test_a_response_ends_with_its_first_end_token_or_at_the_limit(engine):
    stops = tuple(range(40, 90))
    for completion in generate(engine, sampled(5, max_tokens=30, temperature=1.5, stop_token_ids=stops)):
        ends = {END, *stops}
        assert not ends & set(completion.token_ids[:-1])
        stopped = completion.token_ids[-1] in ends
        assert completion.stop_reason == ("stop" if stopped else "length")
        assert stopped or len(completion.token_ids) == 30
        assert len(completion.logprobs) == len(completion.versions) == len(completion.token_ids)
    plain = generate(engine, sampled(1, temperature=0.0, ignore_eos=True))[0]
    ending = VLLMEnds(engine, plain.token_ids[4])
    assert ending.generate(sampled(1, temperature=0.0))[0].stop_reason == "stop"
    assert len(ending.generate(sampled(1, temperature=0.0, ignore_eos=True))[0].token_ids) == 20


class VLLMEnds:
    """The engine with another end token."""

    def __init__(self, engine: VLLMEngine, token: int) -> None:
        self.engine, self.token = engine, token

    def generate(self, requests):
        before, self.engine.eos_token_ids = self.engine.eos_token_ids, frozenset([self.token])
        try:
            return generate(self.engine, requests)
        finally:
            self.engine.eos_token_ids = before


def test_a_request_that_can_never_fit_is_refused(engine):
    with pytest.raises(UserError, match="max_model_len is 128"):
        generate(engine, [([2, 3, 4], Sampling(max_tokens=126))])
    with pytest.raises(ValueError, match="first_temperature"):
        generate(engine, [([2, 3, 4], Sampling(max_tokens=1, first_temperature=2.0))])


def test_a_cancelled_request_leaves_the_batch_and_disturbs_nobody(engine):
    requests = sampled(3, max_tokens=60, ignore_eos=True)
    expected = generate(engine, requests)

    async def run():
        tasks = [asyncio.create_task(engine.generate(p, s)) for p, s in requests]
        await asyncio.sleep(0.05)
        for task in tasks[::3]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = LOOP.run_until_complete(run())
    for index, result in enumerate(results):
        if index % 3:
            assert result.token_ids == expected[index].token_ids
        else:
            assert isinstance(result, asyncio.CancelledError)
    assert engine._llm.get_num_unfinished_requests() == 0


def changed(model, seed: int):
    """A model of the same shape whose weights all differ, in small steps as after some training."""
    other = type(model)(model.config).eval()
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: tensor + 0.05 * tensor.abs().mean() * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
    }
    other.load_state_dict(state)
    return other


def check_updates(engine: VLLMEngine, model, monkeypatch) -> None:
    """Twice, the second time in many buckets: what is drawn then is of the new weights, in tokens and log-probs."""
    requests, greedy = sampled(2), sampled(1, temperature=0.0, ignore_eos=True)
    for version, size in ((5, 2**28), (6, 10_000)):
        monkeypatch.setattr(engine_module, "buckets", partial(buckets, size=size))
        other = changed(model, seed=version)
        before = generate(engine, requests)
        assert distance(other, requests, before) > 1e-2
        hand_over(engine, other, version)
        after = generate(engine, requests)
        assert distance(other, requests, after) < 1e-4
        assert {v for c in after for v in c.versions} == {version}
        for (prompt, _), found in zip(greedy, generate(engine, greedy), strict=True):
            options = {"max_new_tokens": 20, "min_new_tokens": 20, "do_sample": False}
            expected = other.generate(torch.tensor([prompt]), eos_token_id=511, **options)
            assert found.token_ids == expected[0, len(prompt) :].tolist()


def test_new_weights_of_a_tied_model_are_those_it_draws_from(engine, model, monkeypatch):
    assert model.config.tie_word_embeddings
    check_updates(engine, model, monkeypatch)
    hand_over(engine, model, 7)


def test_new_weights_wait_for_the_completions_that_run_and_those_that_come_wait_for_them(engine, model):
    requests = sampled(2, max_tokens=60, ignore_eos=True)
    other = changed(model, seed=1)

    async def run():
        running = [asyncio.create_task(engine.generate(p, s)) for p, s in requests]
        await asyncio.sleep(0.05)
        update = asyncio.create_task(engine.update_weights(as_saved(other, other.state_dict()).items(), 9))
        await asyncio.sleep(0)
        later = [asyncio.create_task(engine.generate(p, s)) for p, s in requests]
        await update
        return await asyncio.gather(*running), await asyncio.gather(*later)

    before = engine.version
    running, later = LOOP.run_until_complete(run())
    assert {v for c in running for v in c.versions} == {before}
    assert {v for c in later for v in c.versions} == {9}
    assert distance(model, requests, running) < 1e-4
    assert distance(other, requests, later) < 1e-4
    hand_over(engine, model, before)


def test_weights_with_nan_draw_nothing(engine, model):
    broken = changed(model, seed=2)
    broken.get_parameter("model.norm.weight").data[0] = float("nan")
    hand_over(engine, broken, 3)
    with pytest.raises(UserError, match=r"logits are NaN or infinite \(weights after step 3\)"):
        generate(engine, sampled(1))
    hand_over(engine, model, 0)


def test_sleep_and_wake_are_harmless_where_nothing_can_be_freed(engine, model):
    before = generate(engine, sampled(2))
    LOOP.run_until_complete(engine.sleep())
    LOOP.run_until_complete(engine.wake())
    assert [c.token_ids for c in generate(engine, sampled(2))] == [c.token_ids for c in before]


def test_every_argument_reaches_vllm(engine):
    found, wanted = engine._llm.vllm_config, engine.arguments
    assert found.model_config.model == wanted.model and found.model_config.skip_tokenizer_init
    assert found.model_config.dtype == torch.float32 and found.model_config.logprobs_mode == "processed_logprobs"
    assert (found.model_config.max_model_len, found.model_config.enforce_eager) == (128, True)
    assert (found.scheduler_config.max_num_seqs, found.scheduler_config.max_num_batched_tokens) == (64, 256)
    assert found.load_config.load_format == "dummy" and found.parallel_config.tensor_parallel_size == 1
    assert found.cache_config.kv_cache_memory_bytes == SMALL["kv_cache_memory_bytes"]
    assert engine._llm.log_stats is False


def test_an_argument_that_vllm_does_not_have_is_the_users_error(tied_folder):
    with pytest.raises(UserError, match="no argument no_such_thing"):
        VLLMEngine(arguments(tied_folder, more={"no_such_thing": 1}), eos_token_ids=[END])


def test_what_vllm_refuses_is_one_message(tied_folder):
    with pytest.raises(UserError, match="vLLM could not start"):
        VLLMEngine(arguments(tied_folder, more={"block_size": -3}), eos_token_ids=[END])


def test_an_untied_model_from_its_files_in_other_options_and_its_end(tmp_path, monkeypatch):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=512, hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, initializer_range=0.05, max_position_embeddings=256,
    )  # fmt: skip
    untied = Qwen2ForCausalLM(config).eval()
    untied.save_pretrained(tmp_path)
    options = {
        "load_format": "safetensors",
        "enable_chunked_prefill": False,
        "max_num_seqs": 4,
        "seed": 5,
        "disable_log_stats": False,
    }
    engine = VLLMEngine(arguments(tmp_path, **options), eos_token_ids=[END], devices="5,7")
    said: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = said.append
    logging.getLogger("vllm").addHandler(listener)
    try:
        requests = sampled(2)
        assert distance(untied, requests, generate(engine, requests)) < 1e-4  # as its files have it
        check_updates(engine, untied, monkeypatch)
        assert any("throughput" in record.getMessage() for record in said)
        assert len(processes_with("CUDA_VISIBLE_DEVICES=5,7")) >= 2  # the engine and its worker
        assert os.environ.get("CUDA_VISIBLE_DEVICES") != "5,7"
        found = engine._llm.vllm_config
        assert found.load_config.load_format == "safetensors" and found.model_config.seed == 5
        assert not found.scheduler_config.enable_chunked_prefill
        with pytest.raises(UserError, match=r"did not take the weights after step 8.*Set rollout.name=hf"):
            LOOP.run_until_complete(engine.update_weights([("model.no_such.weight", torch.ones(2))], 8))
        for process in engine._llm.engine_core.resources.engine_manager.processes:
            os.kill(process.pid, 9)
        with pytest.raises(UserError, match="vLLM's engine process has ended"):
            generate(engine, requests)
    finally:
        engine.close()


ALONE = """
import asyncio, sys, time
from tests.rollout.test_vllm import END, LOOP, VLLMEngine, arguments, generate, sampled
if __name__ == "__main__":  # vLLM's processes import this file
    engine = VLLMEngine(arguments(sys.argv[1]), eos_token_ids=[END])
    generate(engine, sampled(1))
    print("ready", flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize(("moment", "how"), [("while it starts", signal.SIGKILL), ("when it is ready", signal.SIGINT)])
def test_its_processes_end_with_the_one_that_started_them_however_that_ends(tied_folder, tmp_path, moment, how):
    script, mark = tmp_path / "alone.py", f"HONE_TEST={tmp_path.name}-{os.getpid()}"
    script.write_text(ALONE)
    environment = {**os.environ, "HONE_TEST": mark.partition("=")[2], "PYTHONPATH": os.getcwd()}
    command = [sys.executable, str(script), str(tied_folder)]
    alone = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        if moment == "while it starts":
            wait_until(lambda: len(processes_with(mark)) >= 3)  # itself, the watchdog, and the engine
        else:
            assert "ready\n" in alone.stdout
            assert len(processes_with(mark)) >= 4  # and the engine's worker
        # A kill is of one process, Ctrl-C of all that a terminal's command started.
        (os.kill if how == signal.SIGKILL else os.killpg)(alone.pid, how)
        alone.wait(60)
        wait_until(lambda: not processes_with(mark), seconds=60)
    finally:
        for process in processes_with(mark):
            os.kill(process, 9)


def wait_until(holds: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)
