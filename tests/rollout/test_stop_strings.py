"""A completion ends with the first token after which its text contains a stop string: against decoding all of it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from hone.agents import LLM
from hone.models.tiny import train_tokenizer
from hone.rollout.interface import Sampling
from hone.rollout.stop import StopReader, StopStrings
from tests.models_of_families import VOCAB, tiny
from tests.rollout.test_hf_engine import generate, make_engine, prompts, sampled

TEXTS = ["Answer: 42\n\nThe end. ", "naïve café – 日本語のテキスト 🙂🙃", "<tool_call>{}</tool_call>\n", "a b  c\tSTOP"]
STOPS = [
    ("\n",), ("\n\n",), ("STOP",), ("</tool_call>",), ("日本",), ("é",), ("🙂",), (" ",), ("e ", "語"), ("<|end|>",),
    ("42", "The end"), ("never in it",),
]  # fmt: skip


def of_bytes() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS * 20, vocab=330)


def of_sentences() -> PreTrainedTokenizerFast:
    """As Llama 2's: blanks are written ▁, unknown characters are bytes, and a text's first blank is left out."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁a", "▁the", "▁STOP", "ST", "OP", "e", "é", "n", "日", "</", "tool", "_call", ">", "▁▁", "4", "2"]
    made = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def first_end(tokenizer, ids: list[int], strings: tuple[str, ...]) -> int | None:
    """By decoding everything after every token."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if any(string in text for string in strings):
            return count
    return None


def found_end(reader: StopReader, ids: list[int], strings: tuple[str, ...]) -> int | None:
    stop = reader.of(strings)
    return next((count for count in range(1, len(ids) + 1) if stop.ended(ids[:count])), None)


def id_sequences(tokenizer, seed: int) -> list[list[int]]:
    """Texts as they are tokenized and byte by byte, between random tokens, often parts of characters. (Where one byte
    is wrong, Llama 2's decoder gives up all bytes beside it: there the random tokens are whole.)"""
    drawn = random.Random(seed)
    known = tokenizer.get_vocab()
    bytewise = [known.get(f"<0x{byte:02X}>") for byte in "é 日本🙂\n\n語 STOP".encode()]
    sequences = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        noise = drawn.choices([i for piece, i in known.items() if not piece.startswith("<0x")], k=drawn.randrange(30))
        sequences += [noise + ids, ids + noise + ids, noise + [i for i in bytewise if i is not None] + noise]
    return [ids for ids in sequences if ids]


@pytest.mark.parametrize("make", [of_bytes, of_sentences])
def test_the_end_is_where_the_whole_text_first_contains_a_string(make):
    tokenizer = make()
    reader = StopReader(tokenizer)
    ends = 0
    for seed in range(8):
        for ids in id_sequences(tokenizer, seed):
            for strings in STOPS:
                expected = first_end(tokenizer, ids, strings)
                assert found_end(reader, ids, strings) == expected, (ids, strings)
                ends += expected is not None
    assert ends > 100


def test_few_tokens_are_decoded():
    decoded = []

    def decode(ids):
        decoded.append(len(ids))
        return "".join(chr(97 + i) for i in ids)

    stop = StopStrings(("xyz",), decode)
    ids = [i % 23 for i in range(2000)]  # without x, y and z
    assert not any(stop.ended(ids[:count]) for count in range(1, len(ids) + 1))
    assert len(decoded) == 23 and max(decoded) == 1  # each token that there is, once
    assert stop.ended([*ids, 23, 24, 25]) and max(decoded) < 40


PIECES = [bytes([65 + i % 26]) for i in range(VOCAB)]
PIECES[4:14], PIECES[14:24], PIECES[24] = [b"\xe6\x97"] * 10, [b"\xa5"] * 10, b"Q\n"  # two make 日


class Letters:
    """A tokenizer for the tiny models."""

    def decode(self, ids, **options) -> str:
        assert options == {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return b"".join(PIECES[i] for i in np.asarray(ids)).decode("utf-8", "replace")


@pytest.mark.parametrize("stop", [("AB", "Q"), ("日",), ("\n",), ("C", "D", "EF"), ("\ufffd",)])
def test_the_engine_gives_the_tokens_up_to_the_one_that_completes_a_string(stop):
    requests = sampled(12, temperature=1.3, max_tokens=40)
    plain = generate(make_engine(tiny("qwen3")), requests)
    engine = make_engine(tiny("qwen3"), tokenizer=Letters(), max_num_seqs=20)
    stopped = generate(engine, [(p, replace(s, stop=stop)) for p, s in requests])
    ends = [first_end(Letters(), completion.token_ids, stop) for completion in plain]
    for before, after, end in zip(plain, stopped, ends, strict=True):
        assert after.token_ids == before.token_ids[:end]
        assert after.logprobs == pytest.approx(before.logprobs[:end], abs=1e-5)
        assert len(after.versions) == len(after.token_ids)
        assert after.stop_reason == (before.stop_reason if end is None else "stop")
    assert any(end is not None for end in ends)


def test_requests_with_and_without_strings_run_together():
    requests = [(p, replace(s, stop=("A",) if i % 2 else ())) for i, (p, s) in enumerate(sampled(4, ignore_eos=True))]
    for (_, sampling), completion in zip(
        requests, generate(make_engine(tiny("qwen3"), tokenizer=Letters()), requests), strict=True
    ):
        text = Letters().decode(completion.token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert "A" not in text[:-1] if sampling.stop else len(completion.token_ids) == sampling.max_tokens


@pytest.mark.parametrize(
    ("stop", "options", "message"),
    [(("",), {"tokenizer": Letters()}, "empty"), (("a",), {}, "without a tokenizer")],
)
def test_strings_that_cannot_be_looked_for_are_refused(stop, options, message):
    with pytest.raises(ValueError, match=message):
        generate(make_engine(tiny("qwen3"), **options), [(prompts()[0], Sampling(max_tokens=3, stop=stop))])


class Recorder:
    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    async def generate(self, prompt_ids, sampling):
        self.asked.append(sampling.stop)


def test_an_agent_adds_strings_of_its_own_to_those_of_the_run():
    engine = Recorder()
    llm = LLM(engine, Sampling(max_tokens=4, stop=("\n",)))  # type: ignore[arg-type]

    async def calls() -> None:
        await llm.generate([1])
        await llm.generate([1], stop=["</a>", "</b>"])
        await llm.generate([1], stop="###")

    asyncio.run(calls())
    assert engine.asked == [("\n",), ("\n", "</a>", "</b>"), ("\n", "###")]
    for wrong in ([""], [3], ""):
        with pytest.raises(ValueError, match="texts that are not empty"):
            asyncio.run(llm.generate([1], stop=wrong))
