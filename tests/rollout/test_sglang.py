"""The `sglang` engine on a tiny random model: against transformers, and weights handed over to it.

All of it with a stand-in for SGLang, and slowly with the real engine where it is installed with kernels for this
machine. On a CPU for which none are built, empty modules in place of `sgl_kernel` and `torchvision` serve: SGLang then
computes with torch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hone.errors import UserError
from hone.models.names import as_saved
from hone.rollout.hf.sampling import RowSampling, truncate
from hone.rollout.interface import Completion, Sampling
from hone.rollout.sglang.arguments import EngineArguments, check_names
from tests.rollout import fake_sglang
from tests.tiny import build_tiny_model

real = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("sglang") is None or find_spec("sgl_kernel") is None,
        reason="SGLang (the packages sglang and sgl_kernel) is not installed",
    ),
]
only_real = pytest.mark.parametrize("which", [pytest.param("real", marks=real)], indirect=True, scope="module")
LENGTHS = [5, 9, 1]
END = 1
LOOP = asyncio.new_event_loop()  # SGLang's engine belongs to one


def arguments(folder: Path, **options) -> EngineArguments:
    chosen = {
        "device": "cpu",
        "dtype": "float32",
        "random_seed": 0,
        "max_model_len": 128,
        "max_running_requests": 32,
        "max_tokens_at_once": 256,
        "enable_memory_saver": False,
        "json_model_override_args": {},
        "load_format": "dummy",
        "mem_fraction_static": 0.3,
        "more": {"max_total_tokens": 8192},
        **options,
    }
    return EngineArguments(model_path=str(folder), tokenizer_path=str(folder), **chosen)


def hand_over(engine: Any, model, version: int = 0) -> None:
    LOOP.run_until_complete(engine.update_weights(as_saved(model, model.state_dict()).items(), version))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="module")
def model(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=["stand-in", pytest.param("real", marks=real)])
def which(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "real":
        yield request.param
    else:
        with fake_sglang.installed():
            yield request.param


def start(folder: Path, **options) -> Any:
    from hone.rollout.sglang.engine import SGLangEngine

    return SGLangEngine(arguments(folder, **options), eos_token_ids=[END])


@pytest.fixture(scope="module")
def engine(which: str, folder: Path, model):
    """A model that began with random weights and was handed those of its folder."""
    made = start(folder)
    hand_over(made, model)
    yield made
    made.close()


def requests(n: int, **options) -> list[tuple[list[int], Sampling]]:
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(5, 300, (size,), generator=generator).tolist() for size in LENGTHS]
    chosen = {"max_tokens": 12, **options}
    return [(p, Sampling(seed=100 * i + k, **chosen)) for i, p in enumerate(prompts) for k in range(n)]


def generate(engine: Any, asked: list[tuple[list[int], Sampling]]) -> list[Completion]:
    async def all_of_them():
        return await asyncio.gather(*[engine.generate(p, s) for p, s in asked])

    return LOOP.run_until_complete(all_of_them())


def expected_logprobs(model, prompt: list[int], drawn: Completion, sampling: Sampling) -> list[float]:
    """Of the drawn tokens, from one pass over the whole sequence and the formula of each cut."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + drawn.token_ids]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    logits = logits / (sampling.temperature or 1.0)
    if sampling.temperature:
        logits = truncate(logits, RowSampling.of([sampling] * len(logits), torch.device("cpu")))
    return logits.log_softmax(-1).gather(-1, torch.tensor(drawn.token_ids)[:, None])[:, 0].tolist()


def check_logprobs(model, asked, answers) -> None:
    for (prompt, sampling), drawn in zip(asked, answers, strict=True):
        assert drawn.logprobs == pytest.approx(expected_logprobs(model, prompt, drawn, sampling), abs=1e-4)


def check_greedy(engine, model) -> None:
    asked = requests(1, temperature=0.0, ignore_eos=True)
    for (prompt, _), found in zip(asked, generate(engine, asked), strict=True):
        options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
        expected = model.generate(torch.tensor([prompt]), eos_token_id=511, **options)
        assert found.token_ids == expected[0, len(prompt) :].tolist()


def test_greedy_tokens_equal_transformers_generate(engine, model):
    check_greedy(engine, model)


def test_logprobs_are_those_of_the_distribution_that_each_request_draws_from(engine, model):
    options = [
        {},
        {"temperature": 0.7},
        {"temperature": 0.0},
        {"top_k": 3},
        {"top_p": 0.6, "temperature": 1.5},
        {"min_p": 0.3},
        {"top_k": 8, "top_p": 0.8, "min_p": 0.05, "temperature": 0.9},
    ]
    asked = [pair for option in options for pair in requests(1, **option)]
    check_logprobs(model, asked, generate(engine, asked))


@only_real
def test_every_token_is_drawn_as_often_as_its_probability_says(engine, model):
    """The first token of 600 completions of one prompt, of which top_k leaves 4."""
    prompt = requests(1)[0][0]
    asked = [(prompt, Sampling(max_tokens=1, temperature=1.3, top_k=4, seed=seed)) for seed in range(600)]
    drawn = [c.token_ids[0] for c in generate(engine, asked)]
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[:, -1] / 1.3
    probabilities = truncate(logits, RowSampling.of([asked[0][1]], torch.device("cpu"))).softmax(-1)[0]
    for token in probabilities.nonzero()[:, 0].tolist():
        assert drawn.count(token) / 600 == pytest.approx(float(probabilities[token]), abs=0.09)
    assert set(drawn) <= set(probabilities.nonzero()[:, 0].tolist())


def test_a_response_ends_with_its_first_end_token_or_at_the_limit(engine):
    stops = tuple(range(40, 90))
    for ignored in (False, True):
        ends = set(stops) if ignored else {END, *stops}
        options = {"max_tokens": 30, "temperature": 1.5, "stop_token_ids": stops, "ignore_eos": ignored}
        for completion in generate(engine, requests(4, **options)):
            assert not ends & set(completion.token_ids[:-1])
            stopped = completion.token_ids[-1] in ends
            assert completion.stop_reason == ("stop" if stopped else "length")
            assert stopped or len(completion.token_ids) == 30
            assert len(completion.logprobs) == len(completion.versions) == len(completion.token_ids)


def test_a_stop_string_ends_a_response_with_the_token_that_completes_it(engine, folder, model):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = requests(4, max_tokens=20, stop=("1", "+ 2"))
    answers = generate(engine, asked)
    assert {c.stop_reason for c in answers} >= {"stop"}
    for completion in answers:
        text, before = tokenizer.decode(completion.token_ids), tokenizer.decode(completion.token_ids[:-1])
        assert not any(stop in before for stop in ("1", "+ 2"))
        assert any(stop in text for stop in ("1", "+ 2")) == (
            completion.stop_reason == "stop" and completion.token_ids[-1] != END
        )
    check_logprobs(model, asked, answers)


def test_the_longest_request_that_fits_gets_all_its_tokens(engine):
    drawn = generate(engine, [([2, 3, 4], Sampling(max_tokens=125, ignore_eos=True))])[0]
    assert len(drawn.token_ids) == 125 and drawn.stop_reason == "length"
    with pytest.raises(UserError, match="max_model_len is 128"):
        generate(engine, [([2, 3, 4], Sampling(max_tokens=126))])


def test_what_sglang_would_draw_otherwise_is_refused(engine):
    with pytest.raises(ValueError, match="first_temperature"):
        generate(engine, [([2, 3, 4], Sampling(max_tokens=1, first_temperature=2.0))])
    with pytest.raises(ValueError, match="repetition_penalty"):
        generate(engine, [([2, 3, 4], Sampling(max_tokens=1, repetition_penalty=1.2))])


def changed(model, seed: int):
    """A model of the same shape whose weights all differ."""
    other = type(model)(model.config).eval()
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: tensor + 0.05 * tensor.abs().mean() * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
    }
    other.load_state_dict(state)
    return other


def test_new_weights_are_those_it_draws_from(engine, model):
    """Twice; the keys of prompts that older weights computed are not used again."""
    asked = requests(2)
    for version in (5, 6):
        other = changed(model, seed=version)
        generate(engine, asked)
        hand_over(engine, other, version)
        answers = generate(engine, asked)
        check_logprobs(other, asked, answers)
        assert {v for c in answers for v in c.versions} == {version}
        check_greedy(engine, other)
    hand_over(engine, model, 7)


def test_new_weights_wait_for_the_completions_that_run_and_a_cancelled_one_leaves(engine, model):
    asked = requests(2, max_tokens=40, ignore_eos=True)
    other = changed(model, seed=1)

    async def run():
        running = [asyncio.create_task(engine.generate(p, s)) for p, s in asked]
        await asyncio.sleep(0.05)
        running[0].cancel()
        update = asyncio.create_task(engine.update_weights(as_saved(other, other.state_dict()).items(), 9))
        await asyncio.sleep(0)
        later = [asyncio.create_task(engine.generate(p, s)) for p, s in asked]
        await update
        return await asyncio.gather(*running, return_exceptions=True), await asyncio.gather(*later)

    running, later = LOOP.run_until_complete(run())
    assert isinstance(running[0], asyncio.CancelledError)
    check_logprobs(model, asked[1:], running[1:])
    check_logprobs(other, asked, later)
    hand_over(engine, model, 7)


def test_weights_of_another_shape_end_the_run(which, folder):
    """The real engine's process ends of them."""
    engine, loop = start(folder), asyncio.new_event_loop()
    with pytest.raises(UserError, match="did not take the weights after step 8|a process of SGLang's has ended"):
        loop.run_until_complete(engine.update_weights([("model.norm.weight", torch.zeros(3))], 8))
    engine.close()


def test_sleep_and_wake_are_harmless_where_nothing_can_be_freed(engine, model):
    LOOP.run_until_complete(engine.sleep())
    LOOP.run_until_complete(engine.wake())
    check_greedy(engine, model)


@only_real
def test_signals_mean_what_they_meant(engine):
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_an_argument_that_sglang_does_not_have_is_the_users_error(which):
    check_names({"attention_backend": "triton"})
    with pytest.raises(UserError, match="no argument no_such_thing"):
        check_names({"no_such_thing": 1, "attention_backend": "triton"})


@only_real
def test_what_sglang_refuses_is_one_message(which, folder):
    with pytest.raises(UserError, match="SGLang could not start"):
        start(folder, more={"attention_backend": "no_such_kernel"})


@only_real
def test_a_process_that_dies_ends_the_run_with_one_message(which, folder):
    engine = start(folder, load_format="safetensors")

    async def run():
        task = asyncio.create_task(engine.generate([2, 3, 4], Sampling(max_tokens=100, ignore_eos=True)))
        await asyncio.sleep(0.05)
        os.kill(engine._llm.get_all_child_pids()[0], signal.SIGKILL)
        await task

    with pytest.raises(UserError, match="a process of SGLang's has ended"):
        asyncio.new_event_loop().run_until_complete(run())
    engine.close()
    assert all(_gone(pid) for pid in engine._llm.get_all_child_pids())


def _gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False
