"""Ranks that share sequences train what one process trains: loss, gradient norm, weights, and every output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForTokenClassification

from hone.algorithms import PolicyLossParams
from hone.batch import Batch
from hone.models.heads import LogitMemory
from hone.models.load import enable_checkpointing
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions, OutputModule
from hone.training.sharding import ShardOptions, shard
from hone.workers.objectives import PolicyObjective, ValueObjective
from tests.models_of_families import SHAPE, random_ids, tiny
from tests.ranks import run_ranks
from tests.training.test_engine import POLICY, PROMPTS, make_batch, poisoned
from tests.training.test_sharding import CPU, FSDP1, FSDP2, MICRO, engine, share, train

ALL = list(range(7))
TOGETHER = {2: [ALL, ALL], 4: [ALL] * 4}  # the same trajectories on every rank
TWO_BY_TWO = [[0, 2, 3, 4, 6], [0, 2, 3, 4, 6], [1, 5], [1, 5]]


def assert_same(everyone: list[dict[str, Any]], alone: dict[str, Any], dealt: list[list[int]], batch: Batch) -> None:
    """Metrics and weights of every rank, and its columns of the trajectories that it was dealt."""
    for rows, one in zip(dealt, everyone, strict=True):
        for ours, theirs in zip(one["metrics"], alone["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
        assert one["weights"].keys() == alone["weights"].keys()
        for name, expected in alone["weights"].items():
            np.testing.assert_allclose(one["weights"][name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
        places = np.concatenate([np.arange(batch.offsets[r], batch.offsets[r + 1]) for r in rows] or [[]]).astype(int)
        for name in alone.keys() - {"metrics", "weights"}:
            np.testing.assert_allclose(one[name], alone[name][places], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("family", "size", "dealt", "options", "micro"),
    [
        ("qwen3", 2, TOGETHER[2], FSDP2, "1"),
        ("qwen2", 2, TOGETHER[2], FSDP1, "30 tokens"),
        ("gemma2", 2, TOGETHER[2], FSDP2, "30 tokens"),  # windows in every other layer, soft caps
        ("mistral", 2, TOGETHER[2], ShardOptions("fsdp2", shard_size=1), "1"),
        ("qwen3", 2, TWO_BY_TWO, FSDP2, "30 tokens"),
        ("llama", 2, TWO_BY_TWO, FSDP1, "1"),
        ("gemma2", 2, TWO_BY_TWO, FSDP1, "1"),
        ("qwen3", 2, [ALL, ALL, [], []], ShardOptions("fsdp2", shard_size=2), "1"),  # two ranks have nothing
        ("llama", 4, TOGETHER[4], FSDP2, "30 tokens"),  # two kv heads for four ranks
    ],
)
def test_ranks_that_share_sequences_train_what_one_process_trains(
    family: str, size: int, dealt: list[list[int]], options: ShardOptions, micro: str
) -> None:
    alone = train(0, family, None, MicroBatching(3), ForwardOptions(), [])
    forward = ForwardOptions(sequence_ranks=size)
    everyone = run_ranks(len(dealt), train, family, options, MICRO[micro], forward, dealt)
    assert_same(everyone, alone, dealt, make_batch())


@pytest.mark.parametrize("size", [2, 4])
def test_fewer_tokens_than_ranks(size: int) -> None:
    """Sequences of two tokens, of which one is trained."""
    everyone = run_ranks(size, short, size)
    assert_same(everyone, short(0, 1), [[0, 1]] * size, two_tokens(2))


def two_tokens(rows: int) -> Batch:
    batch = Batch.from_sequences({"input_ids": random_ids([2] * rows).split(2), "loss_mask": [[0, 1]] * rows})
    numbers = torch.linspace(-1, 1, batch.num_tokens)
    mask = batch["loss_mask"]
    weight = mask.float() / mask.sum()
    return batch.with_tokens(advantages=numbers, old_logprobs=numbers - 4, ref_logprobs=numbers - 4, loss_weight=weight)


def short(rank: int, size: int) -> dict[str, Any]:
    options = FSDP2 if size > 1 else None
    trained = engine("qwen3", options, MicroBatching(1), ForwardOptions(sequence_ranks=size))
    metrics = [trained.step(two_tokens(1 + i), POLICY, training_step=i, mask="loss_mask") for i in range(2)]
    logprobs = trained.forward(two_tokens(2), {"logprobs"}, mask="loss_mask")
    weights = {name: tensor.numpy() for name, tensor in trained.weights().items()}
    return {"metrics": metrics, "weights": weights, "logprobs": logprobs["logprobs"].numpy()}


GROUPED = PolicyObjective("gspo", PolicyLossParams(), entropy_coeff=0.01, kl_kind="full", kl_coef=0.7)


def families_of_prompts(seed: int = 0) -> Batch:
    """The usual batch, whose prompts are now the first tokens of three."""
    batch = make_batch(seed=seed)
    ids, prompts = batch["input_ids"].clone(), random_ids([5], seed=9)
    for start, length in zip(batch.offsets.tolist(), PROMPTS, strict=False):
        ids[start : start + length] = prompts[:length]
    return batch.with_tokens(input_ids=ids).with_rows(prompt_length=torch.tensor(PROMPTS))


def policy(rank: int, size: int, dealt: list[list[int]], strategy: ShardOptions | None) -> dict[str, Any]:
    """All that a policy can be asked for: a sequence's own ratio, entropy and exact KL in the loss and as columns, with
    shared prompts, logits in chunks and checkpointed layers."""
    options = ForwardOptions(shared_prompts=True, temperature=0.8, memory=LogitMemory(5), sequence_ranks=size)
    reference = engine_of(tiny("qwen3", seed=1).requires_grad_(False), options, strategy)
    model = tiny("qwen3")
    enable_checkpointing(model)
    trained = engine_of(model, options, strategy, reference=reference)
    batches = [share(families_of_prompts(seed), dealt) for seed in range(3)]
    metrics = [trained.step(b, GROUPED, training_step=i, mask="loss_mask") for i, b in enumerate(batches)]
    return {"metrics": metrics, **results(trained, batches[0], {"logprobs", "entropy", "full_kl"})}


def critic(rank: int, size: int, dealt: list[list[int]], strategy: ShardOptions | None) -> dict[str, Any]:
    model = value_model()
    trained = engine_of(model, ForwardOptions(sequence_ranks=size), strategy)
    batches = [share(with_returns(seed), dealt) for seed in range(3)]
    objective = ValueObjective(0.5)
    metrics = [trained.step(b, objective, training_step=i, mask="loss_mask") for i, b in enumerate(batches)]
    return {"metrics": metrics, **results(trained, batches[0], {"values"})}


def with_returns(seed: int) -> Batch:
    batch = make_batch(seed=seed)
    return batch.with_tokens(values=batch["advantages"] * 0.1, returns=batch["advantages"])


def value_model() -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(**SHAPE, num_labels=1)
    config._attn_implementation = "sdpa"
    return Qwen3ForTokenClassification(config)


def engine_of(
    model: Any, options: ForwardOptions, strategy: ShardOptions | None, reference: TorchEngine | None = None
) -> TorchEngine:
    module, sharding = shard(OutputModule(model, options), model, strategy, CPU)
    learning = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-3, eps=1e-3) if learning else None
    return TorchEngine(
        model, scoring=MicroBatching(2), options=options, optimizer=optimizer, grad_clip=0.5, module=module,
        sharding=sharding, reference=reference,
    )  # fmt: skip


def results(trained: TorchEngine, batch: Batch, want: set[str]) -> dict[str, Any]:
    columns = trained.forward(batch, want, mask="loss_mask").tokens
    weights = {name: tensor.numpy() for name, tensor in trained.weights().items()}
    return {"weights": weights, **{name: column.numpy() for name, column in columns.items()}}


@pytest.mark.parametrize(
    ("role", "dealt", "strategy"),
    [
        (policy, TOGETHER[2], FSDP2),
        (policy, TWO_BY_TWO, FSDP1),
        (critic, TOGETHER[2], FSDP1),
        (critic, TWO_BY_TWO, FSDP2),
    ],
)
def test_every_output_and_loss_is_that_of_one_process(role: Any, dealt: list[list[int]], strategy: Any) -> None:
    alone = role(0, 1, [], None)
    everyone = run_ranks(len(dealt), role, 2, dealt, strategy)
    assert_same(everyone, alone, dealt, make_batch())


def watching(rank: int, size: int) -> tuple[list[int], dict[str, Any]]:
    """How many tokens the model saw in each pass, and what a step says of its own forward pass."""
    trained = engine("qwen3", FSDP2 if size > 1 else None, MicroBatching(100), ForwardOptions(sequence_ranks=size))
    seen: list[int] = []
    trained.model.get_input_embeddings().register_forward_pre_hook(lambda _, ids: seen.append(ids[0].numel()))
    columns, _ = trained.watched_step(make_batch(), POLICY, ("logprobs", "entropy"), training_step=0, mask="loss_mask")
    return seen, {name: column.numpy() for name, column in columns.tokens.items()}


def test_a_rank_computes_its_slice_alone_and_returns_the_columns_of_all() -> None:
    (tokens,), alone = watching(0, 1)
    for seen, columns in run_ranks(2, watching, 2):
        assert seen == [-(-tokens // 2)]
        for name, expected in alone.items():
            np.testing.assert_allclose(columns[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


def poison(rank: int) -> tuple[float, bool]:
    trained = engine("qwen3", FSDP2, MicroBatching(1), ForwardOptions(sequence_ranks=2))
    before = {name: tensor.clone() for name, tensor in trained.weights().items()}
    metrics = trained.step(share(poisoned(make_batch()), TWO_BY_TWO), POLICY, training_step=0, mask="loss_mask")
    unchanged = all(torch.equal(before[name], tensor) for name, tensor in trained.weights().items())
    return metrics["nonfinite_steps"], unchanged


def test_a_nan_of_one_group_skips_the_step_on_all_ranks() -> None:
    assert run_ranks(4, poison) == [(1.0, True)] * 4
