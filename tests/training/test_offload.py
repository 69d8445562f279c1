"""Offloading moves tensors, never numbers: what is trained is the same, and each tensor is where it should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hone.errors import UserError
from hone.training.activations import ActivationOffload
from hone.training.checkpoint import load_engine, save_engine
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.offload import OffloadOptions
from hone.training.outputs import ForwardOptions, OutputModule
from hone.training.sharding import ShardOptions, Whole, shard
from tests.models_of_families import tiny
from tests.ranks import run_ranks
from tests.shows import shows
from tests.training.test_engine import POLICY, make_batch
from tests.training.test_sharding import DEALT, engine, share, updates

CPU = torch.device("cpu")
EVERYTHING = ("model", "optimizer", "extra", "hf_model")


class Watched(Whole):
    """Weights that say where they were told to be; nothing can be computed with them while they are away."""

    def __init__(self) -> None:
        self.moves: list[str] = []

    def move(self, module: nn.Module, device: torch.device) -> None:
        self.moves.append(device.type)


def offloading(options: OffloadOptions) -> tuple[TorchEngine, Watched]:
    """An engine that believes to be on a GPU when it says where its weights should go."""
    model, sharding = tiny("qwen3"), Watched()
    made = TorchEngine(
        model,
        scoring=MicroBatching(3),
        options=ForwardOptions(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        sharding=sharding,
        offload=options,
    )
    made.offload.device = torch.device("cuda")
    return made, sharding


@shows("actor_rollout_ref.actor.fsdp_config.param_offload")
def test_weights_are_on_the_device_for_the_time_of_each_use(tmp_path):
    made, sharding = offloading(OffloadOptions(weights=True))
    assert sharding.moves == ["cpu"], "from the beginning"
    for use in (
        lambda: made.forward(make_batch(), {"logprobs"}, mask="loss_mask"),
        lambda: made.step(make_batch(), POLICY, training_step=0, mask="loss_mask"),
        lambda: made.weights(),
    ):
        sharding.moves.clear()
        use()
        assert sharding.moves == ["cuda", "cpu"]
        assert all(p.grad is None for p in made.model.parameters()), "gradients would stay behind on the device"
    sharding.moves.clear()
    with pytest.raises(ZeroDivisionError), made.offload.weights(), made.offload.weights():
        assert sharding.moves == ["cuda"], "the inner use finds them there"
        1 / 0  # noqa: B018
    assert sharding.moves == ["cuda", "cpu"]


def test_without_the_option_nothing_moves():
    made, sharding = offloading(OffloadOptions())
    made.step(make_batch(), POLICY, training_step=0, mask="loss_mask")
    assert sharding.moves == []


@shows("actor_rollout_ref.actor.fsdp_config.optimizer_offload")
def test_the_optimisers_state_is_on_the_device_for_its_step_alone(monkeypatch):
    made, _ = offloading(OffloadOptions(optimizer_state=True))
    trail: list[str] = []
    monkeypatch.setattr(made.offload, "_move_state", lambda device: trail.append(device.type))
    step = made.optimizer.step
    monkeypatch.setattr(made.optimizer, "step", lambda: (trail.append("step"), step()))
    made.step(make_batch(), POLICY, training_step=0, mask="loss_mask")
    assert trail == ["cuda", "step", "cpu"]


def test_the_moments_move_and_the_step_count_stays():
    made, _ = offloading(OffloadOptions())
    made.step(make_batch(), POLICY, training_step=0, mask="loss_mask")
    made.offload._move_state(torch.device("meta"))
    for state in made.optimizer.state.values():
        assert {name: value.device.type for name, value in state.items()} == {
            "step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta",
        }  # fmt: skip


def trained_with(rank: int, options: ShardOptions | None, offload: OffloadOptions, folder: Any) -> dict[str, Any]:
    """Weights after 4 steps, with a save and a load in another engine in between."""

    def build() -> TorchEngine:
        made = engine("qwen3", options, MicroBatching(1), ForwardOptions())
        return TorchEngine(
            made.model, scoring=made.scoring, train=made.train, options=made.options, optimizer=made.optimizer,
            grad_clip=0.5, module=made.module, sharding=made.sharding, offload=offload,
        )  # fmt: skip

    dealt = DEALT[2] if options else []
    first, second = build(), build()
    updates(first, dealt, range(2))
    save_engine(first, folder, EVERYTHING)
    load_engine(second, folder, EVERYTHING)
    updates(second, dealt, range(2, 4))
    second.forward(share(make_batch(), dealt), {"logprobs"}, mask="loss_mask")
    return {name: tensor.float().numpy() for name, tensor in second.weights().items()}


@pytest.mark.parametrize(
    "options",
    [ShardOptions("fsdp2"), ShardOptions("fsdp"), ShardOptions("fsdp2", cpu_policy=True)],
    ids=["fsdp2", "fsdp1", "policy"],
)
@shows("actor_rollout_ref.actor.fsdp_config.offload_policy")
def test_sharded_weights_that_come_and_go_train_as_one_process_does(options, tmp_path):
    offload = OffloadOptions() if options.cpu_policy else OffloadOptions(True, True)
    expected = trained_with(0, None, OffloadOptions(), tmp_path / "alone")
    for found in run_ranks(2, trained_with, options, offload, tmp_path / "ranks"):
        for name, weights in expected.items():
            np.testing.assert_allclose(found[name], weights, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_policy_of_several_ranks_is_refused_on_one_gpu():
    model = tiny("qwen3")
    module = OutputModule(model, ForwardOptions())
    with pytest.raises(UserError, match="param_offload=True"):
        shard(module, model, ShardOptions(cpu_policy=True), torch.device("cuda"))
    assert isinstance(shard(module, model, ShardOptions(cpu_policy=True), CPU)[1], Whole), "all is in CPU memory"


@pytest.mark.parametrize("checkpointing", [False, True])
@shows("actor_rollout_ref.model.enable_activation_offload")
def test_activations_that_were_away_give_the_same_gradient(monkeypatch, checkpointing):
    from hone.models.load import enable_checkpointing
    from hone.training import outputs

    moved: list[torch.Tensor] = []

    def every_activation(tensor):
        owner = tensor if tensor._base is None else tensor._base
        if isinstance(owner, nn.Parameter):
            return False
        moved.append(tensor)
        return True

    def gradient(offload):
        model = tiny("qwen3")
        if checkpointing:
            enable_checkpointing(model)
        made = TorchEngine(
            model,
            scoring=MicroBatching(3),
            options=ForwardOptions(offload=offload),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        )
        made.step(make_batch(), POLICY, training_step=0, mask="loss_mask")
        return [p.grad for p in model.parameters()]

    expected = gradient(False)
    assert not moved
    monkeypatch.setattr(outputs, "ActivationOffload", lambda: ActivationOffload(every_activation))
    for found, known in zip(gradient(True), expected, strict=True):
        assert torch.equal(found, known)
    assert moved, "with checkpointing the inputs of the layers, without it all that they keep"
    assert all(tensor.device == CPU for tensor in moved)


def test_weights_and_small_tensors_are_not_worth_moving():
    from hone.training.activations import worth_moving

    weight = nn.Parameter(torch.empty(300, 300, device="meta"))
    activation = torch.empty(300, 300, device="meta")
    assert worth_moving(activation)
    assert not worth_moving(weight)
    assert not worth_moving(weight.t())
    assert not worth_moving(torch.empty(10, device="meta"))
    assert not worth_moving(torch.empty(300, 300))
