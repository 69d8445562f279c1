"""Learning-rate factors against their closed forms; the last step gets exactly the last value."""

import math

import pytest
import torch

from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions
from hone.training.schedule import SCHEDULES, Schedule, warmup_steps
from tests.models_of_families import tiny
from tests.training.test_engine import POLICY, make_batch


def factors(kind: str, total: int, warmup: int = 0, **options: float) -> list[float]:
    schedule = Schedule(kind, total_steps=total, warmup_steps=warmup, **options)
    return [schedule.factor(step) for step in range(total)]


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("warmup", [1, 2, 5])
def test_warm_up_rises_in_equal_parts_to_the_peak(kind, warmup):
    assert factors(kind, 20, warmup)[:warmup] == [(i + 1) / warmup for i in range(warmup)]


@pytest.mark.parametrize("warmup", [0, 1, 4])
@pytest.mark.parametrize("least", [0.0, 0.25])
def test_each_shape_follows_its_closed_form(warmup, least):
    total, first = 17, max(warmup - 1, 0)
    share = [(step - first) / (total - 1 - first) for step in range(total)]
    linear, cosine = (factors(kind, total, warmup, min_ratio=least) for kind in ("linear", "cosine"))
    for step in range(warmup, total):
        assert linear[step] == pytest.approx(1 - (1 - least) * share[step])
        assert cosine[step] == pytest.approx(least + (1 - least) * (1 + math.cos(math.pi * share[step])) / 2)
    assert factors("constant", total, warmup)[warmup:] == [1.0] * (total - warmup)


def test_wsd_stays_at_the_peak_and_falls_over_its_last_part():
    found = factors("wsd", 101, min_ratio=0.1, decay_ratio=0.2)
    assert found[:81] == [1.0] * 81
    assert found[90] == pytest.approx(0.1 + 0.9 / 2)
    assert found[81:] == sorted(found[81:], reverse=True)


@pytest.mark.parametrize("kind", ["linear", "cosine", "wsd"])
@pytest.mark.parametrize("total", [2, 3, 10, 1001])
@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("least", [0.0, 0.1])
def test_the_last_step_gets_exactly_the_last_value_and_no_step_more_than_the_peak(kind, total, warmup, least):
    found = factors(kind, total, warmup, min_ratio=least)
    assert found[-1] == least
    assert found[0] == 1.0
    assert all(least <= factor <= 1.0 for factor in found)
    assert Schedule(kind, total, warmup, min_ratio=least).factor(total + 5) == least


def test_more_cycles_fall_rise_and_fall_again():
    found = factors("cosine", 7, num_cycles=1.5)
    assert [found[i] for i in (0, 2, 4, 6)] == pytest.approx([1.0, 0.0, 1.0, 0.0])


def test_warm_up_is_counted_in_steps_or_as_a_share_of_all():
    assert warmup_steps(7, 0.5, 100) == 7
    assert warmup_steps(0, 0.5, 100) == 0
    assert warmup_steps(-1, 0.055, 100) == 5


def test_the_engine_steps_with_the_rate_of_the_training_step():
    model = tiny("qwen3")
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.2)
    engine = TorchEngine(
        model,
        scoring=MicroBatching(4),
        options=ForwardOptions(),
        optimizer=optimizer,
        schedule=Schedule("linear", total_steps=5),
    )
    for step in (0, 0, 3, 4):
        before = [p.clone() for p in model.parameters()]
        metrics = engine.step(make_batch(), POLICY, training_step=step, mask="loss_mask")
        assert metrics["lr"] == pytest.approx(0.2 * (1 - step / 4))
        moved = math.sqrt(sum((a - b).square().sum().item() for a, b in zip(before, model.parameters(), strict=True)))
        assert moved == pytest.approx(metrics["lr"] * min(metrics["grad_norm"], 1.0), rel=1e-3, abs=1e-9)
