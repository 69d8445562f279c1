"""The plan of a fine-tuning run."""

from __future__ import annotations

import torch

from hone.cluster import Dealing
from hone.config import Loaded
from hone.config.schema.sft import SFTConfig
from hone.trainers.planning.disk import Disk, disk_of, role_disk
from hone.trainers.planning.due import DueSteps
from hone.trainers.planning.machine import Machine
from hone.trainers.planning.memory import Held, Rank, saving
from hone.trainers.planning.passes import Pass, Sequences, pass_over
from hone.trainers.planning.plan import Batches, Places, Plan, Update
from hone.trainers.planning.steps import Steps, count_rows, order_of, steps_done
from hone.trainers.planning.storage import Storage, storage_of, ways
from hone.trainers.planning.working import Engine
from hone.training.checkpoint import files_of
from hone.workers.recipe import EngineRecipe
from hone.workers.settings import RunSettings
from hone.workers.sft import sft_recipe

LOGPROBS = frozenset({"logprobs"})


def plan_sft(loaded: Loaded, machine: Machine, dealing: Dealing) -> Plan:
    config: SFTConfig = loaded.config
    steps = _steps(config)
    run = RunSettings(torch.device(machine.kind), steps.total, config.trainer.seed, loaded.user_keys, skeleton=True)
    recipe = sft_recipe(config, run)
    assert recipe.training is not None
    warmup = recipe.training.schedule_for(steps.total).warmup_steps
    storage, size = storage_of(recipe, config.ranks), config.data.train_batch_size
    share = _pass(config, recipe, dealing)
    models = (Held("model", storage, recipe.offload, cpu_policy=False),)
    rank = Rank(models, machine.kind)
    files = files_of(config.trainer.checkpoint.save_contents, adapter=storage.adapter > 0, trains=True)
    working = Engine(recipe, storage, config.ranks).training(share, LOGPROBS)
    return Plan(
        command="sft",
        machine=machine,
        places=_places(config, recipe),
        steps=steps,
        batches=Batches(size, size, 2 * size, config.data.max_length * size, (config.data.max_length - 1) * size),
        updates={"model": Update(size, 1, 1, share, steps.left, warmup)},
        passes={},
        models=models,
        phases=(rank.update("update", working, "model"), *saving(rank, "model", storage, files)),
        disk=_disk(config, storage, len(steps.saves)),
    )


def _pass(config: SFTConfig, recipe: EngineRecipe, dealing: Dealing) -> Pass:
    """Every token but a row's first may be trained."""
    assert recipe.training is not None
    rows, longest = range(config.data.train_batch_size), Sequences(1, config.data.max_length - 1)
    return pass_over(
        list(rows), longest, recipe.training.batching, ranks=config.ranks, shared_prompts=False, dealing=dealing
    )


def _steps(config: SFTConfig) -> Steps:
    data, trainer = config.data, config.trainer
    rows = count_rows(data.train_files, data.train_max_samples)
    order = order_of(rows, data.train_batch_size)
    total = order.total_steps(trainer.total_training_steps, trainer.total_epochs)
    done = steps_done(trainer.default_local_dir, trainer.resume_mode, trainer.resume_from_path)
    return Steps(
        rows=rows,
        validation_rows=count_rows(data.val_files, data.val_max_samples) if data.val_files else 0,
        steps_per_epoch=order.steps_per_epoch,
        total=total,
        done=done,
        validations=DueSteps(done, total, trainer.test_freq if data.val_files else 0),
        saves=DueSteps(done, total, trainer.save_freq, last=True),  # what was trained is never lost
    )


def _places(config: SFTConfig, recipe: EngineRecipe) -> Places:
    shared_by = recipe.options.sequence_ranks
    return Places(
        nodes=config.trainer.nnodes,
        ranks_per_node=config.trainer.n_gpus_per_node,
        roles=["model"],
        driver=["data"],
        shard_groups={"model": ways(recipe.sharding, config.ranks)} if config.ranks > 1 else {},
        sequence_groups={"model": shared_by} if shared_by > 1 else {},
    )


def _disk(config: SFTConfig, storage: Storage, count: int) -> Disk:
    trainer, path = config.trainer, config.model.partial_pretrain
    contents, keep = trainer.checkpoint.save_contents, trainer.max_ckpt_to_keep
    written = role_disk(contents, storage, saves=count, keep=keep, ranks=config.ranks, tokenizer=path)
    return disk_of(trainer.default_local_dir, {"model": written}, 0)
