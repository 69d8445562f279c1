"""The hf engine against transformers.generate and the trainer's own log-probs, and its bookkeeping under load."""

from __future__ import annotations

import asyncio

import pytest
import torch

from hone.batch import Batch
from hone.errors import UserError
from hone.models import forward
from hone.rollout.hf import HFEngine, next_tokens
from hone.rollout.interface import Completion, Sampling
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions
from tests.models_of_families import FAMILIES, random_ids, tiny

LENGTHS = [5, 9, 3, 12, 1, 7]
EOS = 1


def prompts(seed: int = 0) -> list[list[int]]:
    return [piece.tolist() for piece in random_ids(LENGTHS, seed).split(LENGTHS)]


def make_engine(model, **options) -> HFEngine:
    return HFEngine(model, eos_token_ids=[EOS], max_model_len=options.pop("max_model_len", 128), **options)


def generate(engine: HFEngine, requests: list[tuple[list[int], Sampling]]) -> list[Completion]:
    async def all_of_them():
        return await asyncio.gather(*[engine.generate(p, s) for p, s in requests])

    return asyncio.run(all_of_them())


def sampled(n: int, **options) -> list[tuple[list[int], Sampling]]:
    arguments = {"max_tokens": 20, **options}
    return [(p, Sampling(seed=100 * i + k, **arguments)) for i, p in enumerate(prompts()) for k in range(n)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_with_nan_draw_nothing(temperature):
    model = tiny("qwen3")
    model.get_parameter("model.norm.weight").data[0] = float("nan")
    with pytest.raises(UserError, match=r"logits are NaN or infinite \(weights after step 0\)"):
        generate(make_engine(model), sampled(1, temperature=temperature))


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers_generate(family):
    model = tiny(family)
    for prompt, completion in zip(prompts(), generate(make_engine(model), sampled(1, temperature=0.0)), strict=True):
        reference = tiny(family)
        expected = reference.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :]
        assert completion.token_ids == expected.tolist()


@pytest.mark.parametrize("budget", [8192, 5])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_equal_those_the_trainer_computes(family, temperature, budget):
    model = tiny(family)
    requests = sampled(3, temperature=temperature)
    completions = generate(make_engine(model, max_num_batched_tokens=budget), requests)
    batch = Batch.from_sequences(
        {
            "input_ids": [p + c.token_ids for (p, _), c in zip(requests, completions, strict=True)],
            "response_mask": [
                [0] * len(p) + [1] * len(c.token_ids) for (p, _), c in zip(requests, completions, strict=True)
            ],
        }
    )
    trainer = TorchEngine(model, scoring=MicroBatching(4), options=ForwardOptions(temperature=temperature))
    expected = trainer.forward(batch, {"logprobs"})["logprobs"][batch["response_mask"].bool()]
    found = torch.tensor([value for c in completions for value in c.logprobs])
    assert (found - expected).abs().max() < 1e-5


def test_the_same_seed_gives_the_same_tokens_whatever_else_is_in_the_batch():
    model = tiny("qwen3")
    requests = sampled(4)
    together = generate(make_engine(model), requests)
    few_slots = generate(make_engine(model, max_num_seqs=3, max_num_batched_tokens=10), requests)
    alone = [generate(make_engine(model), [request])[0] for request in requests[::5]]
    assert [c.token_ids for c in few_slots] == [c.token_ids for c in together]
    assert [c.token_ids for c in alone] == [c.token_ids for c in together[::5]]
    assert len({tuple(c.token_ids) for c in together[:4]}) > 1  # other seeds, other answers


def test_a_prompt_is_computed_once_for_all_its_samples(monkeypatch):
    seen = []

    def counted(model, input_ids, layout, index=None):
        seen.append(len(input_ids))
        return forward.run_layout(model, input_ids, layout, index)

    monkeypatch.setattr(next_tokens, "run_layout", counted)
    generate(make_engine(tiny("qwen3")), sampled(8, max_tokens=1))
    assert seen == [sum(LENGTHS)]


def test_a_response_ends_with_its_first_end_token_or_at_the_limit():
    requests = sampled(30, max_tokens=30, temperature=1.5)
    for completion in generate(make_engine(tiny("qwen3")), requests):
        assert EOS not in completion.token_ids[:-1]
        stopped = completion.token_ids[-1] == EOS
        assert completion.stop_reason == ("stop" if stopped else "length")
        assert stopped or len(completion.token_ids) == 30
        assert len(completion.logprobs) == len(completion.versions) == len(completion.token_ids)
    ignoring = generate(make_engine(tiny("qwen3")), sampled(30, max_tokens=30, temperature=1.5, ignore_eos=True))
    assert {len(c.token_ids) for c in ignoring} == {30}
    assert any(EOS in c.token_ids[:-1] for c in ignoring)


def test_a_stop_id_of_the_request_ends_it_too():
    plain = generate(make_engine(tiny("qwen3")), sampled(1, temperature=0.0))[0]
    stop = plain.token_ids[4]
    sampling = Sampling(max_tokens=20, temperature=0.0, stop_token_ids=(stop,))
    stopped = generate(make_engine(tiny("qwen3")), [(prompts()[0], sampling)])[0]
    assert stopped.token_ids == plain.token_ids[: plain.token_ids.index(stop) + 1]
    assert stopped.stop_reason == "stop"


def test_many_requests_of_mixed_sizes_through_few_slots_are_all_answered():
    engine = make_engine(tiny("qwen3"), max_num_seqs=5, max_num_batched_tokens=16)
    requests = [(prompts(k)[k % 6], Sampling(max_tokens=1 + k % 17, seed=k)) for k in range(300)]
    completions = generate(engine, requests)
    assert all(1 <= len(c.token_ids) <= s.max_tokens for c, (_, s) in zip(completions, requests, strict=True))
    assert not engine.running and not engine.waiting


@pytest.mark.usefixtures("token_by_token")
def test_a_cancelled_request_frees_its_slot_and_disturbs_nobody():
    engine = make_engine(tiny("qwen3"), max_num_seqs=4)
    requests = sampled(3, max_tokens=25, ignore_eos=True)
    expected = generate(make_engine(tiny("qwen3")), requests)

    async def run():
        tasks = [asyncio.create_task(engine.generate(p, s)) for p, s in requests]
        for _ in range(6):
            await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(run())
    for index, result in enumerate(results):
        if index % 3 == 0:
            assert isinstance(result, asyncio.CancelledError)
        else:
            assert result.token_ids == expected[index].token_ids
    assert not engine.running and not engine.waiting


def test_an_error_inside_the_model_reaches_everybody_who_waits(monkeypatch):
    def broken(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(next_tokens, "run_layout", broken)
    engine = make_engine(tiny("qwen3"), max_num_seqs=2)

    async def run():
        return await asyncio.gather(*[engine.generate(p, s) for p, s in sampled(1)], return_exceptions=True)

    assert [str(error) for error in asyncio.run(run())] == ["no memory"] * len(LENGTHS)
    monkeypatch.undo()
    assert generate(engine, sampled(1))  # and the engine is usable again


def test_a_request_that_can_never_fit_is_refused():
    engine = make_engine(tiny("qwen3"), max_model_len=10)
    with pytest.raises(UserError, match="max_model_len is 10"):
        generate(engine, [([2, 3, 4], Sampling(max_tokens=8))])


def test_new_weights_change_the_answer_and_the_version():
    engine, other = make_engine(tiny("qwen3")), tiny("qwen3", seed=1)
    before = generate(engine, sampled(1, temperature=0.0))
    asyncio.run(engine.update_weights(other.state_dict().items(), version=3))
    after = generate(engine, sampled(1, temperature=0.0))
    expected = generate(make_engine(other), sampled(1, temperature=0.0))
    assert [c.token_ids for c in after] == [c.token_ids for c in expected] != [c.token_ids for c in before]
    assert {v for c in before for v in c.versions} == {0}
    assert {v for c in after for v in c.versions} == {3}


def test_sleeping_frees_the_cache_and_generation_goes_on_after():
    engine = make_engine(tiny("qwen3"))
    before = generate(engine, sampled(2))
    assert engine.cache.keys
    asyncio.run(engine.sleep())
    assert not engine.cache.keys
    asyncio.run(engine.wake())
    assert [c.token_ids for c in generate(engine, sampled(2))] == [c.token_ids for c in before]
