"""Which format is computed in, and what is said about it."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path

import pytest
import torch

from hone.errors import UserError
from hone.models import precision
from hone.models.precision import autocast, pick_compute_dtype, stored_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
KEYS = ("fsdp_config.mixed_precision.param_dtype", "fsdp_config.model_dtype")


@pytest.mark.parametrize(
    ("wanted", "device", "chosen", "weights", "expected"),
    [
        ("bf16", CPU, False, FP32, FP32),
        ("bf16", CPU, True, FP32, BF16),
        ("bf16", GPU, False, FP32, BF16),
        ("fp32", CPU, True, FP32, FP32),
        ("bf16", CPU, False, BF16, BF16),
        ("bf16", CPU, True, BF16, BF16),
        ("fp32", GPU, True, BF16, FP32),
    ],
)
def test_the_format_and_whether_anything_is_said(
    wanted: str, device: torch.device, chosen: bool, weights: torch.dtype, expected: torch.dtype
) -> None:
    dtype, notice = pick_compute_dtype(wanted, device, chosen_by_user=chosen, weights=weights)
    assert dtype == expected
    assert (notice is not None) == (dtype != {"bf16": BF16, "fp32": FP32}[wanted])


def test_computing_wider_than_the_weights_are_held_is_refused_on_a_cpu_with_both_keys() -> None:
    with pytest.raises(UserError) as caught:
        pick_compute_dtype("fp32", CPU, chosen_by_user=True, weights=BF16, keys=KEYS)
    for part in (f"{KEYS[0]}=fp32", f"{KEYS[1]}=bf16", f"Set {KEYS[1]}=fp32", f"{KEYS[0]}=bf16"):
        assert part in str(caught.value)


@pytest.mark.parametrize("weights", [BF16, FP16])
def test_weights_that_a_cpu_cannot_widen_compute_in_their_own_format_and_that_is_said_once(
    weights: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    precision._say_once.cache_clear()
    layer, x = torch.nn.Linear(4, 4).to(weights), torch.ones(2, 4, dtype=weights)
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with autocast(CPU, weights, FP32):
                assert layer(x).dtype == weights
    name = {BF16: "bf16", FP16: "fp16"}[weights]
    assert [f"computing in {name}" in record.message for record in caplog.records] == [True]
    assert "model_dtype" in caplog.text


def test_fp32_weights_compute_in_the_narrower_format(caplog: pytest.LogCaptureFixture) -> None:
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    with autocast(CPU, FP32, BF16):
        assert layer(x).dtype == BF16
    with autocast(CPU, FP32, FP32):
        assert layer(x).dtype == FP32
    assert not caplog.records


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": None, "text_config": {"torch_dtype": "bfloat16"}}, "bfloat16"),
        ({}, "float32"),
    ],
)
def test_auto_is_the_format_that_the_model_was_saved_in(tmp_path: Path, config: dict, expected: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "never-heard-of", **config}))
    assert stored_dtype(str(tmp_path)) == expected


def test_auto_of_a_broken_config_or_of_a_format_that_is_not_built_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=rf"no model could be loaded from '{tmp_path}'"):
        stored_dtype(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "float64"}))
    with pytest.raises(UserError, match="'float64'.*float32, bfloat16 or float16"):
        stored_dtype(str(tmp_path))
