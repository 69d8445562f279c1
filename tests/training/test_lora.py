"""Training an adapter: gradients and updates of the formula written out, sharded or not, and a reference for free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from transformers import AutoModelForCausalLM, PreTrainedModel

from hone.algorithms import PolicyLossParams
from hone.errors import UserError
from hone.models.load import enable_checkpointing
from hone.models.lora import LoraSettings, attach
from hone.training.checkpoint import ADAPTER, MODEL, load_engine, save_engine
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions, OutputModule
from hone.training.own_reference import AsAtStart
from hone.training.sharding import ShardOptions, shard
from hone.workers.objectives import PolicyObjective
from tests.models.test_lora import randomised
from tests.models_of_families import tiny
from tests.ranks import preload, run_ranks
from tests.training.test_checkpoint import make_engine as make_whole_engine
from tests.training.test_engine import MICRO, POLICY, brute_force_loss, make_batch
from tests.training.test_sharding import CPU, DEALT, share, updates

pytest.importorskip("peft")
preload("peft")
LORA = LoraSettings(rank=4, alpha=8, targets="all-linear")
EVERYTHING = ("model", "optimizer", "extra")
EXACT_KL = PolicyObjective("vanilla", PolicyLossParams(), kl_kind="full", kl_coef=0.5)
STEPS = 4


def optimizer_over(parameters: Any) -> torch.optim.Optimizer:
    """A small eps would make noise of small gradients."""
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-2, eps=1e-3, weight_decay=0.1)


def make_engine(
    micro: MicroBatching = MICRO["3"],
    *,
    shards: ShardOptions | None = None,
    packed: bool = True,
    checkpointing: bool = False,
    settings: LoraSettings = LORA,
    model: PreTrainedModel | None = None,
    moved: bool = True,
    dtype: torch.dtype = torch.float32,
) -> TorchEngine:
    """With a reference; `moved`: away from the zero that a new adapter is."""
    model = (model or tiny("qwen3")).to(dtype)
    torch.manual_seed(0)
    adapter = attach(model, settings, keep_start=True)
    if moved:
        randomised(model)
    if checkpointing:
        enable_checkpointing(model)
    options = ForwardOptions(packed=packed, compute_dtype=dtype)
    module, sharding = shard(OutputModule(model, options), model, shards, CPU)
    engine = TorchEngine(
        model, module=module, sharding=sharding, adapter=adapter, scoring=micro, options=options, grad_clip=0.5,
        optimizer=optimizer_over(module.parameters()),
    )  # fmt: skip
    engine.reference = TorchEngine(
        model, module=AsAtStart(module, adapter), sharding=sharding, scoring=micro, options=options
    )
    return engine


def trained(engine: TorchEngine) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in engine.model.named_parameters() if p.requires_grad}


def written_out(start: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[float]]:
    """The same updates in plain autograd, W + (8 / 4) B A: gradients of the first step, weights, gradient norms."""
    base = tiny("qwen3").requires_grad_(False)
    factors = {name: tensor.clone().requires_grad_(True) for name, tensor in start.items()}
    optimizer = optimizer_over(factors.values())

    def logits(ids: torch.Tensor) -> torch.Tensor:
        weights = dict(base.named_parameters())
        for name in [name for name in factors if "lora_A" in name]:
            layer = name.partition(".lora_A")[0] + ".weight"
            weights[layer] = weights[layer] + 2.0 * factors[name.replace("lora_A", "lora_B")] @ factors[name]
        return functional_call(base, weights, (ids,), {"use_cache": False}).logits

    gradients: dict[str, torch.Tensor] = {}
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        brute_force_loss(make_batch(seed=step), logits).backward()
        gradients = gradients or {name: f.grad.clone() for name, f in factors.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(factors.values(), 0.5)))
        optimizer.step()
    return gradients, {name: f.detach() for name, f in factors.items()}, norms


@pytest.mark.parametrize(
    ("packed", "micro", "checkpointing"), [(True, "3", False), (False, "1", False), (True, "30 tokens", True)]
)
def test_gradients_and_updates_are_those_of_the_formula(packed: bool, micro: str, checkpointing: bool) -> None:
    engine = make_engine(MICRO[micro], packed=packed, checkpointing=checkpointing)
    frozen = {name: p.clone() for name, p in engine.model.named_parameters() if not p.requires_grad}
    gradients, weights, norms = written_out(trained(engine))
    assert all(gradient.norm() > 1e-3 for gradient in gradients.values())
    engine.grad_clip = float("inf")
    snapshot = make_engine(MICRO[micro], packed=packed, checkpointing=checkpointing)
    snapshot.grad_clip = float("inf")
    snapshot.step(make_batch(seed=0), POLICY, training_step=0, mask="loss_mask")
    for name, p in snapshot.model.named_parameters():
        if p.requires_grad:
            assert (p.grad - gradients[name]).norm() < 1e-5 * gradients[name].norm(), name
    engine.grad_clip = 0.5
    found = [engine.step(make_batch(seed=s), POLICY, training_step=s, mask="loss_mask") for s in range(STEPS)]
    assert [metrics["grad_norm"] for metrics in found] == pytest.approx(norms, rel=1e-5)
    assert trained(engine).keys() == weights.keys()
    for name, tensor in trained(engine).items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-5, atol=1e-6, msg=name)
    assert all(torch.equal(p, frozen[n]) for n, p in engine.model.named_parameters() if not p.requires_grad)


def test_the_optimiser_holds_the_adapter_and_the_counts_tell_it_from_the_model() -> None:
    engine = make_engine()
    held = [p for group in engine.optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for n, p in engine.model.named_parameters() if "lora_" in n}
    assert engine.num_trained == sum(p.numel() for p in held) == 2 * 4 * (4 * 32 + 2 * (32 + 16) + 3 * (32 + 48))
    plain = tiny("qwen3").num_parameters()
    assert engine.num_parameters == plain + engine.num_trained
    engine.step(make_batch(), POLICY, training_step=0, mask="loss_mask")
    assert len(engine.optimizer.state) == len(held)


@pytest.mark.parametrize("from_adapter", [False, True])
def test_the_reference_is_the_policy_before_its_first_step_and_stays_it(from_adapter: bool, tmp_path: Path) -> None:
    settings = LORA
    if from_adapter:
        begun = make_engine()
        begun.adapter.save(tmp_path, trained(begun))
        settings = LoraSettings(0, 16, "all-linear", path=str(tmp_path))
    engine = make_engine(settings=settings, moved=False)
    start = engine.forward(make_batch(), {"logprobs"})["logprobs"]
    assert torch.equal(engine.reference.forward(make_batch(), {"logprobs"})["logprobs"], start)
    if not from_adapter:
        base = TorchEngine(tiny("qwen3"), scoring=MICRO["3"], options=ForwardOptions())
        # without an adapter the model may be recorded, with norms of its own: the same up to rounding
        torch.testing.assert_close(base.forward(make_batch(), {"logprobs"})["logprobs"], start, rtol=0, atol=1e-5)
    for step in range(3):
        engine.step(make_batch(seed=step), EXACT_KL, training_step=step, mask="loss_mask")
    assert torch.equal(engine.reference.forward(make_batch(), {"logprobs"})["logprobs"], start)
    assert (engine.forward(make_batch(), {"logprobs"})["logprobs"] - start).abs().max() > 1e-3
    assert engine.model.training is False  # the last pass only scored
    engine.step(make_batch(), EXACT_KL, training_step=3, mask="loss_mask")
    assert engine.model.training is True  # the reference's passes within an update leave it as it was


def test_the_exact_kl_is_that_to_a_reference_of_its_own() -> None:
    """Value and gradient, against an engine that holds a second model."""
    batch = make_batch()
    shared, apart = make_engine(), make_engine()
    apart.reference = TorchEngine(tiny("qwen3").requires_grad_(False), scoring=MICRO["3"], options=ForwardOptions())
    metrics = [e.step(batch, EXACT_KL, training_step=0, mask="loss_mask") for e in (shared, apart)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-6) and metrics[0]["kl_loss"] > 1e-3
    for (name, ours), theirs in zip(trained(shared).items(), trained(apart).values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, msg=name)


def run(rank: int, shards: Any, micro: Any, objective: Any, dealt: list[list[int]]) -> dict[str, Any]:
    engine = make_engine(micro, shards=shards)
    batch = share(make_batch(), dealt)
    metrics = [
        engine.step(share(make_batch(seed=s), dealt), objective, training_step=s, mask="loss_mask")
        for s in range(STEPS)
    ]
    columns = {
        "logprobs": engine.forward(batch, {"logprobs"})["logprobs"].numpy(),
        "ref_logprobs": engine.reference.forward(batch, {"logprobs"})["logprobs"].numpy(),
        "full_kl": engine.forward(batch, {"logprobs", "full_kl"})["full_kl"].numpy(),
    }
    weights = {name: tensor.numpy() for name, tensor in engine.weights().items()}
    return {"metrics": metrics, "weights": weights, "columns": columns}


@pytest.mark.parametrize(
    ("size", "shards", "micro", "objective"),
    [
        (2, ShardOptions("fsdp2"), "1", POLICY),
        (4, ShardOptions("fsdp2"), "30 tokens", EXACT_KL),
        (4, ShardOptions("fsdp2", shard_size=2), "1", EXACT_KL),
        (2, ShardOptions("fsdp2", min_num_params=2500), "1", POLICY),
        (2, ShardOptions("fsdp"), "1", EXACT_KL),
        (4, ShardOptions("fsdp"), "30 tokens", POLICY),
        (4, ShardOptions("fsdp", shard_size=2, reshard_after_forward=False), "1", POLICY),
    ],
)
def test_sharded_ranks_train_what_one_process_trains(
    size: int, shards: ShardOptions, micro: str, objective: PolicyObjective
) -> None:
    alone = run(0, None, MicroBatching(3), objective, [])
    everyone = run_ranks(size, run, shards, MICRO[micro], objective, DEALT[size])
    batch = make_batch()
    for dealt, one in zip(DEALT[size], everyone, strict=True):
        for ours, theirs in zip(one["metrics"], alone["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
        assert one["weights"].keys() == alone["weights"].keys() == tiny("qwen3").state_dict().keys()
        for name, expected in alone["weights"].items():
            np.testing.assert_allclose(one["weights"][name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
        places = np.concatenate([np.arange(batch.offsets[r], batch.offsets[r + 1]) for r in dealt] or [[]]).astype(int)
        for name, expected in alone["columns"].items():
            np.testing.assert_allclose(one["columns"][name], expected[places], rtol=1e-5, atol=1e-5, err_msg=name)


def run_in_bf16(rank: int, shards: Any, dealt: list[list[int]]) -> dict[str, Any]:
    engine = make_engine(MicroBatching(2), shards=shards, dtype=torch.bfloat16, moved=False)
    norms = [metrics["grad_norm"] for metrics in updates(engine, dealt, range(STEPS))]
    formats = {p.dtype for p in trained(engine).values()}
    return {"norms": norms, "formats": formats, "merged": {tensor.dtype for tensor in engine.weights().values()}}


def test_a_model_in_bf16_keeps_its_adapter_in_fp32() -> None:
    alone = run_in_bf16(0, None, [])
    shards = ShardOptions("fsdp2", param_dtype=torch.bfloat16)
    for found in (alone, *run_ranks(2, run_in_bf16, shards, DEALT[2])):
        assert found["formats"] == {torch.float32} and found["merged"] == {torch.bfloat16}
        assert found["norms"] == pytest.approx(alone["norms"], rel=0.05) and min(found["norms"]) > 0


def test_a_loaded_engine_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    whole, resumed = make_engine(), make_engine(moved=False)
    updates(whole, [], range(2))
    save_engine(whole, tmp_path, EVERYTHING)
    assert not (tmp_path / MODEL).exists()
    load_engine(resumed, tmp_path, EVERYTHING)
    assert updates(whole, [], range(2, 4)) == updates(resumed, [], range(2, 4))
    assert all(torch.equal(tensor, trained(resumed)[name]) for name, tensor in trained(whole).items())


def resume(rank: int, shards: Any, folder: Path, dealt: list[list[int]], saves: bool) -> dict[str, Any]:
    engine = make_engine(MicroBatching(1), shards=shards, moved=saves)
    if saves:
        updates(engine, dealt, range(2))
        save_engine(engine, folder, (*EVERYTHING, "hf_model"))
    else:
        load_engine(engine, folder, EVERYTHING)
    updates(engine, dealt, range(2, 4))
    return {name: tensor.numpy() for name, tensor in engine.weights().items()}


@pytest.mark.parametrize("shards", [ShardOptions("fsdp2"), ShardOptions("fsdp")], ids=["fsdp2", "fsdp1"])
def test_a_checkpoint_goes_on_with_any_number_of_ranks(shards: ShardOptions, tmp_path: Path) -> None:
    import peft

    expected = run_ranks(2, resume, shards, tmp_path, DEALT[2], True)[0]
    runs = [
        run_ranks(2, resume, shards, tmp_path, DEALT[2], False)[0],
        run_ranks(4, resume, shards, tmp_path, DEALT[4], False)[0],
        resume(0, None, tmp_path, [], False),
    ]
    for found in runs:
        for name, weights in expected.items():
            np.testing.assert_allclose(found[name], weights, rtol=1e-5, atol=1e-6, err_msg=name)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface").state_dict()
    theirs = peft.PeftModel.from_pretrained(tiny("qwen3"), tmp_path / ADAPTER).merge_and_unload().state_dict()
    assert plain.keys() == theirs.keys()
    assert all(torch.allclose(plain[name], tensor, rtol=1e-6, atol=1e-7) for name, tensor in theirs.items())


def test_whole_weights_and_adapters_are_not_taken_for_each_other(tmp_path: Path) -> None:
    save_engine(make_engine(), tmp_path / "adapter", ["model"])
    save_engine(make_whole_engine(), tmp_path / "whole", ["model"])
    with pytest.raises(UserError, match="holds a LoRA adapter and this run trains all weights"):
        load_engine(make_whole_engine(), tmp_path / "adapter", ["model"])
    with pytest.raises(UserError, match="holds all weights and this run trains a LoRA adapter"):
        load_engine(make_engine(), tmp_path / "whole", ["model"])
    with pytest.raises(UserError, match="saved without 'model'"):
        load_engine(make_engine(), tmp_path, ["model"])
