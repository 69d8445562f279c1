"""The names that the stand-in for SGLang knows, all that hone says to it, are those of SGLang's own classes."""

from __future__ import annotations

import inspect

import pytest

from tests.rollout import fake_sglang

pytest.importorskip("sglang.srt.server_args", reason="the package sglang is not installed")
pytestmark = pytest.mark.slow  # the import takes long


def parameters(function) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_every_argument_of_the_engine_is_one_of_the_servers():
    from sglang.srt.server_args import ServerArgs

    assert parameters(ServerArgs) >= fake_sglang.KNOWN_ARGUMENTS


def test_every_part_of_a_request_is_known_to_sglang():
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    assert parameters(Engine.async_generate) & parameters(GenerateReqInput) >= fake_sglang.GENERATE
    assert parameters(SamplingParams) >= fake_sglang.SAMPLING


@pytest.mark.parametrize("method", fake_sglang.METHODS)
def test_every_method_waits_for_its_answer_in_the_engines_loop(method):
    """So that a loop that hands the coroutine out lets it be awaited."""
    from sglang.srt.entrypoints.engine import Engine

    found = getattr(Engine, method)
    assert fake_sglang.METHODS[method] <= parameters(found)
    assert not inspect.iscoroutinefunction(found)
    assert "return self.loop.run_until_complete(" in inspect.getsource(found)


def test_parts_of_the_memory_have_the_names_that_sglang_gives_them():
    from sglang.srt.constants import GPU_MEMORY_ALL_TYPES

    assert set(GPU_MEMORY_ALL_TYPES) == fake_sglang.TAGS


def test_a_request_can_be_taken_back():
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    assert "rid" in parameters(TokenizerManager.abort_request)
    assert hasattr(TokenizerManager, "auto_create_handle_loop")


def test_a_logit_processor_reaches_sglangs_process_as_text():
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    from hone.rollout.sglang.cuts import Cuts

    assert isinstance(CustomLogitProcessor.from_str(Cuts.to_str()), Cuts)
