"""The phases of a reinforcement-learning step, in their order, and what each takes of a rank's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from transformers import PreTrainedModel

from hone.cluster.dealing import shares
from hone.config.schema.ppo import PPOConfig
from hone.models.load import load_causal_lm
from hone.rollout.hf.request import admissible
from hone.trainers.planning.memory import ACTIVATIONS, CACHE, WHOLE_WEIGHTS, Held, Phase, Rank, Working, saving
from hone.trainers.planning.passes import Micro, Pass, Sequences
from hone.trainers.planning.plan import Update
from hone.trainers.planning.storage import Storage, whole_bytes
from hone.trainers.planning.tracing import Tracer, UntraceableError, traceable
from hone.trainers.planning.working import Engine
from hone.training.checkpoint import files_of
from hone.workers.actor import policy_objective
from hone.workers.build import frozen_source
from hone.workers.recipe import EngineRecipe
from hone.workers.settings import RunSettings

VALUES, LOGPROBS = frozenset({"values"}), frozenset({"logprobs"})
LOOKED_AT = frozenset({"logprobs", "entropy"})
ROLES = {"log-probs": "actor", "reference": "ref", "values": "critic"}  # whose pass it is


class StepMemory:
    """saves: whether the run saves a checkpoint; on_policy: the update computes the old log-probs itself"""

    def __init__(
        self,
        config: PPOConfig,
        run: RunSettings,
        recipes: Mapping[str, EngineRecipe],
        storage: Mapping[str, Storage],
        *,
        on_policy: bool,
        saves: bool,
    ) -> None:
        self.config, self.ranks = config, config.ranks
        self.on_policy, self.saves = on_policy, saves
        own = None if self.ranks == 1 else load_causal_lm(frozen_source(config, run))
        self.models = tuple(_held(recipes, storage, self.ranks, own))
        self.rank = Rank(self.models, run.device.type)
        self.engines = {role: Engine(recipe, storage[role], self.ranks) for role, recipe in recipes.items()}
        self.rollout = self.engines["actor"].tracer if own is None else Tracer(own)

    def phases(self, passes: Mapping[str, Pass], updates: Mapping[str, Update], validated: int) -> Iterator[Phase]:
        """`validated` are the rows of a validation, 0 where there is none."""
        data, rollout = self.config.data, self.config.actor_rollout_ref.rollout
        if not self.config.trainer.val_only:
            yield self._generation("generate", data.train_batch_size * rollout.n, rollout.n)
        if validated:
            together = min(validated, data.val_batch_size or validated)
            yield self._generation("validate", together * rollout.val_kwargs.n, rollout.val_kwargs.n)
        if self.config.trainer.val_only:
            return
        for name, one in passes.items():
            yield self._scoring(name, one)
        if "critic" in updates:
            working = self.engines["critic"].training(updates["critic"].share, VALUES)
            yield self.rank.update("update critic", working, "critic")
        yield self._policy_update(updates["actor"])
        if self.ranks > 1:
            yield self._hand_over()
        if self.saves:
            yield from self._saving()

    def _scoring(self, name: str, one: Pass) -> Phase:
        algorithm, role = self.config.algorithm, ROLES[name]
        at_start = role not in self.engines  # a reference in the actor's own model
        role = "actor" if at_start else role
        want, active = {"log-probs": LOOKED_AT, "reference": LOGPROBS, "values": VALUES}[name], {role}
        if name == "log-probs" and algorithm.use_kl_in_reward and algorithm.kl_penalty == "full":
            want, active = want | {"full_kl"}, {role, "ref"}
        return self.rank.phase(name, self.engines[role].scoring(one, want, at_start=at_start), *active)

    def _policy_update(self, update: Update) -> Phase:
        want = policy_objective(self.config.actor_rollout_ref.actor).want
        working = self.engines["actor"].training(update.share, want, LOOKED_AT if self.on_policy else frozenset())
        return self.rank.update("update actor", working, "actor", *(["ref"] if "full_kl" in want else []))

    def _generation(self, name: str, tasks: int, n: int) -> Phase:
        """`tasks` trajectories, dealt to the ranks, n of them to a prompt."""
        data, rollout = self.config.data, self.config.actor_rollout_ref.rollout
        rows = min(max(len(share) for share in shares(range(tasks), self.ranks)), rollout.max_num_seqs)
        longest = Sequences(data.max_prompt_length, data.max_response_length, n)
        admitted = list(admissions(rows, longest, rollout.max_num_batched_tokens))
        active = "actor" if self.ranks == 1 else "rollout"
        compute = self.engines["actor"].recipe.options.compute_dtype
        piece = rollout.max_num_batched_tokens if rollout.enable_chunked_prefill else longest.prompt
        try:
            with traceable():
                peak, cache = self.rollout.generation(compute, admitted, piece)
        except UntraceableError as problem:
            return self.rank.phase(name, Working(str(problem)), active)
        return self.rank.with_parts(name, active, {CACHE: cache, ACTIVATIONS: peak - cache})

    def _hand_over(self) -> Phase:
        """Of sharded weights every rank gathers all for the rollout; an adapter is merged into a further copy."""
        storage = self.engines["actor"].storage
        copies = 2 if storage.adapter else 1
        return self.rank.with_parts("hand over", "actor", {WHOLE_WEIGHTS: storage.whole_weights * copies})

    def _saving(self) -> Iterator[Phase]:
        contents = {"actor": self.config.actor_rollout_ref.actor.checkpoint, "critic": self.config.critic.checkpoint}
        for role, checkpoint in contents.items():
            if role in self.engines:
                storage = self.engines[role].storage
                files = files_of(checkpoint.save_contents, adapter=storage.adapter > 0, trains=True)
                yield from saving(self.rank, role, storage, files)


def admissions(rows: int, longest: Sequences, max_tokens: int) -> Iterator[Micro]:
    """The trajectories whose prompts are computed together, one batch after the other, until all rows run."""
    running = 0
    while running < rows:
        waiting = [(row // longest.n, longest.prompt) for row in range(running, rows)]
        count = admissible(waiting, rows - running, max_tokens)
        families = [family for family, _ in waiting[:count]]
        yield Micro([longest.prompt] * count, [longest.total] * count, families)
        running += count


def _held(
    recipes: Mapping[str, EngineRecipe], storage: Mapping[str, Storage], ranks: int, own: PreTrainedModel | None
) -> Iterator[Held]:
    """The models of a rank. `own` is the rollout's, where the actor's weights are sharded."""
    for role, recipe in recipes.items():
        yield Held(role, storage[role], recipe.offload, recipe.sharding.cpu_policy and ranks > 1)
    if own is not None:
        count, size = sum(p.numel() for p in own.parameters()), whole_bytes(own)
        yield Held("rollout", Storage(parameters=count, weights=size, whole_weights=size))
