"""The plan of a reinforcement-learning run, in the order of its training step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from hone.agents import load_surroundings
from hone.cluster import Dealing
from hone.config import Loaded
from hone.config.schema.ppo import PPOConfig
from hone.models.load import load_tokenizer
from hone.models.randomness import is_stochastic
from hone.rewards.manager import PROCESSES
from hone.trainers.on_policy import OnPolicy
from hone.trainers.planning.disk import Disk, disk_of, role_disk
from hone.trainers.planning.due import DueSteps
from hone.trainers.planning.machine import Machine
from hone.trainers.planning.passes import Pass, Sequences, pass_over
from hone.trainers.planning.plan import Batches, Places, Plan, Update
from hone.trainers.planning.ppo_memory import StepMemory
from hone.trainers.planning.steps import Steps, count_rows, order_of, steps_done
from hone.trainers.planning.storage import storage_of, ways
from hone.trainers.ppo_setup import actor_plan, critic_plan, prompts, roles
from hone.trainers.updates import UpdatePlan
from hone.trainers.validation import validates_first
from hone.training.micro_batches import MicroBatching
from hone.workers.build import actor_recipe, critic_recipe, reference_batching, reference_recipe
from hone.workers.recipe import EngineRecipe
from hone.workers.settings import RunSettings

MOST_DEALT = 2**18  # trajectories that are dealt one by one; what there is of more is counted from these


def plan_ppo(loaded: Loaded, machine: Machine, dealing: Dealing) -> Plan:
    return _PPOPlan(loaded, machine, dealing).plan()


class _PPOPlan:
    def __init__(self, loaded: Loaded, machine: Machine, dealing: Dealing) -> None:
        self.config: PPOConfig = loaded.config
        self.machine, self.dealing = machine, dealing
        self.ranks = self.config.ranks
        self.steps = _steps(self.config)
        self.run = RunSettings(
            torch.device(machine.kind), self.steps.total, self.config.trainer.seed, loaded.user_keys, skeleton=True
        )
        self.actor = actor_recipe(self.config, self.run)
        self.critic = critic_recipe(self.config, self.run) if self.config.trains_critic else None
        own = self.config.actor_rollout_ref.model.trains_adapter
        has_reference = self.config.needs_reference and not own
        self.reference = reference_recipe(self.config, self.run) if has_reference else None
        recipes = {"actor": self.actor, "ref": self.reference, "critic": self.critic}
        self.recipes = {role: recipe for role, recipe in recipes.items() if recipe is not None}
        self.storage = {role: storage_of(recipe, self.ranks) for role, recipe in self.recipes.items()}
        data, n = self.config.data, self.config.actor_rollout_ref.rollout.n
        self.longest = Sequences(data.max_prompt_length, data.max_response_length, n)
        self.trajectories = data.train_batch_size * n
        single_step = OnPolicy.of(self.config, stochastic=is_stochastic(self.actor.model))
        self.on_policy = single_step.holds(range(self.trajectories), actor_plan(self.config), self.steps.total)

    def plan(self) -> Plan:
        passes = dict(self._passes())
        updates = {"actor": self._update(self.actor, actor_plan(self.config), self._actor_steps)}
        if self.critic is not None:
            updates["critic"] = self._update(self.critic, critic_plan(self.config), self.steps.left)
        memory = StepMemory(
            self.config,
            self.run,
            self.recipes,
            self.storage,
            on_policy=self.on_policy,
            saves=bool(self.steps.saves),
        )
        validated = self.steps.validation_rows if self.steps.validations else 0
        return Plan(
            command="ppo",
            machine=self.machine,
            places=self._places(),
            steps=self.steps,
            batches=self._batches(),
            updates=updates,
            passes=passes,
            models=memory.models,
            phases=tuple(memory.phases(passes, updates, validated)),
            disk=self._disk(),
            remarks=list(self._remarks()),
        )

    @property
    def _actor_steps(self) -> int:
        """Training steps that update the actor."""
        return max(self.steps.total - max(self.steps.done, self.config.trainer.critic_warmup), 0)

    def _batches(self) -> Batches:
        return Batches(
            self.config.data.train_batch_size,
            self.trajectories,
            2 * self.trajectories,
            self.longest.total * self.trajectories,
            self.longest.response * self.trajectories,
        )

    def _passes(self) -> Iterator[tuple[str, Pass]]:
        """What is computed over all trajectories of a step, before the update."""
        count = self.trajectories
        groups = [i // self.longest.n for i in range(min(count, MOST_DEALT))]
        if not self.on_policy:
            yield "log-probs", self._pass(groups, count, self.actor.scoring, self.actor)
        if self.config.needs_ref_logprobs:
            recipe = self.reference or self.actor
            yield "reference", self._pass(groups, count, reference_batching(self.config, recipe.options), recipe)
        if self.critic is not None:
            yield "values", self._pass(groups, count, self.critic.scoring, self.critic)

    def _update(self, recipe: EngineRecipe, plan: UpdatePlan, training_steps: int) -> Update:
        assert recipe.training is not None
        size, count = min(plan.mini_batch, self.trajectories), -(-self.trajectories // plan.mini_batch)
        order = torch.arange(min(self.trajectories, MOST_DEALT))
        if plan.shuffle:  # a prompt's responses then come apart
            order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(plan.seed))]
        groups = (order[:size] // self.longest.n).tolist()
        share = self._pass(groups, size, recipe.training.batching, recipe)
        total, warmup = training_steps * count * plan.epochs, recipe.training.schedule_for(self.steps.total)
        return Update(size, count, plan.epochs, share, total, warmup.warmup_steps)

    def _pass(self, groups: Sequence[int], count: int, batching: MicroBatching, recipe: EngineRecipe) -> Pass:
        """Over `count` trajectories, of which `groups` are the first."""
        shared = recipe.options.shared_prompts
        one = pass_over(groups, self.longest, batching, ranks=self.ranks, shared_prompts=shared, dealing=self.dealing)
        return one if count <= len(groups) else one.times(count / len(groups))

    def _places(self) -> Places:
        config, trainer = self.config, self.config.trainer
        sequence_groups = {role: r.options.sequence_ranks for role, r in self.recipes.items()}
        workers = PROCESSES[config.reward_model.reward_manager]
        return Places(
            nodes=trainer.nnodes,
            ranks_per_node=trainer.n_gpus_per_node,
            roles=list(roles(config, self.run)),
            driver=["data", "advantages", f"rewards in {workers} process{'es' if workers > 1 else ''}"],
            shard_groups={role: ways(r.sharding, self.ranks) for role, r in self.recipes.items() if self.ranks > 1},
            sequence_groups={role: size for role, size in sequence_groups.items() if size > 1},
        )

    def _disk(self) -> Disk:
        trainer, role = self.config.trainer, self.config.actor_rollout_ref
        saves = len(self.steps.saves)
        parts = {
            "actor": (role.actor.checkpoint.save_contents, trainer.max_actor_ckpt_to_keep, role.model.path),
            "critic": (
                self.config.critic.checkpoint.save_contents,
                trainer.max_critic_ckpt_to_keep,
                self.config.critic.model.path,
            ),
        }
        written = {
            name: role_disk(contents, self.storage[name], saves=saves, keep=keep, ranks=self.ranks, tokenizer=path)
            for name, (contents, keep, path) in parts.items()
            if name in self.storage
        }
        dumped = self.steps.left * self.trajectories * self.longest.total if trainer.rollout_data_dir else 0
        return disk_of(trainer.default_local_dir, written, dumped)

    def _remarks(self) -> Iterator[str]:
        groups = self.config.algorithm.filter_groups
        if groups.enable:
            most = f"at most {groups.max_num_gen_batches}" if groups.max_num_gen_batches else "any number of"
            yield f"algorithm.filter_groups samples {most} batches of prompts for a step"
        if self.config.algorithm.adv_estimator == "remax":
            yield "algorithm.adv_estimator=remax also samples one greedy answer to each prompt"
        if self.config.trainer.critic_warmup:
            yield f"trainer.critic_warmup={self.config.trainer.critic_warmup} steps train the critic alone"
        if self.on_policy:
            yield "the single optimiser step of a training step computes the old log-probs itself"


def _steps(config: PPOConfig) -> Steps:
    data, trainer = config.data, config.trainer
    rows = _rows(config, training=True)
    order = order_of(rows, data.train_batch_size)
    total = order.total_steps(trainer.total_training_steps, trainer.total_epochs)
    done = steps_done(trainer.default_local_dir, trainer.resume_mode, trainer.resume_from_path)
    if trainer.val_only:
        total = done
    validated = bool(data.val_files)
    return Steps(
        rows=rows,
        validation_rows=_rows(config, training=False) if data.val_files else 0,
        steps_per_epoch=order.steps_per_epoch,
        total=total,
        done=done,
        validations=DueSteps(
            done, total, trainer.test_freq if validated else 0, first=validated and validates_first(config, done)
        ),
        saves=DueSteps(done, total, trainer.save_freq),
    )


def _rows(config: PPOConfig, *, training: bool) -> int:
    """Prompts that are used. Only where long ones are dropped must they be read."""
    data = config.data
    if not data.filter_overlong_prompts:
        files, most = (data.train_files, data.train_max_samples) if training else (data.val_files, data.val_max_samples)
        assert files is not None
        return count_rows(files, most)
    name = data.tokenizer or config.actor_rollout_ref.model.path
    tokenizer = load_tokenizer(name, trust_remote_code=data.trust_remote_code)
    surroundings = load_surroundings(config.actor_rollout_ref.rollout.multi_turn)
    return len(prompts(config, tokenizer, surroundings, training=training))
