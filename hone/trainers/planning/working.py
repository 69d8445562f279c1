"""What the passes of an engine take beside what it holds, or why that is not known."""

from __future__ import annotations

from contextlib import nullcontext

from hone.trainers.planning.memory import Working
from hone.trainers.planning.passes import Pass
from hone.trainers.planning.storage import Storage
from hone.trainers.planning.tracing import Tracer, UntraceableError, traceable
from hone.workers.recipe import EngineRecipe


class Engine:
    """An engine as far as a plan knows it. What is asked of its weights must be asked before the first pass."""

    def __init__(self, recipe: EngineRecipe, storage: Storage, ranks: int) -> None:
        self.recipe, self.storage, self.ranks = recipe, storage, ranks
        self.tracer = Tracer(recipe.model, recipe.options.compute_dtype if ranks > 1 else None)

    def scoring(self, one: Pass, want: frozenset[str], *, at_start: bool = False) -> Working:
        """A pass without gradient. at_start: of the model as it was before its adapter was trained."""
        options, adapter = self.recipe.options, self.recipe.adapter
        try:
            with traceable(), adapter.as_at_start() if adapter and at_start else nullcontext():
                peak = self.tracer.scoring(options, one.dearest.shared_by(options.sequence_ranks), want)
                return Working(peak, self.storage.gathered)
        except UntraceableError as problem:
            return Working(str(problem), self.storage.gathered)

    def training(self, one: Pass, want: frozenset[str], watch: frozenset[str] = frozenset()) -> Working:
        """The passes of an update."""
        options, only = self.recipe.options, one.micro_batches == 1 and self.ranks == 1
        try:
            with traceable():
                micro = one.dearest.shared_by(options.sequence_ranks)
                peak = self.tracer.update(options, micro, want, watch, only=only)
                return Working(peak, self.storage.training_gathered)
        except UntraceableError as problem:
            return Working(str(problem), self.storage.training_gathered)
