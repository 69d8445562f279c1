"""What an engine is made of, known before anything is sharded or stepped: a run builds the engine of it, and a plan
reads the same from a model without weights."""

from __future__ import annotations

from dataclasses import dataclass, field

from transformers import PreTrainedModel

from hone.config.schema.optim import OptimizerKeys
from hone.models.lora import Adapter
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.offload import OffloadOptions
from hone.training.outputs import ForwardOptions, OutputModule
from hone.training.schedule import Schedule
from hone.training.sharding import ShardOptions, shard
from hone.workers.engine_parts import optimizer_of, schedule_of


@dataclass(frozen=True)
class Training:
    """How an engine trains; `schedule` names the shape of the learning rate."""

    batching: MicroBatching
    optim: OptimizerKeys
    schedule: str
    grad_clip: float

    def schedule_for(self, total_steps: int) -> Schedule:
        return schedule_of(self.optim, self.schedule, total_steps)


@dataclass(frozen=True)
class EngineRecipe:
    """scoring: micro-batches of passes without gradient; training: None for a model that only scores"""

    model: PreTrainedModel
    options: ForwardOptions
    sharding: ShardOptions
    scoring: MicroBatching
    training: Training | None = None
    offload: OffloadOptions = field(default_factory=OffloadOptions)
    adapter: Adapter | None = None

    def engine(self, total_steps: int = 1, reference: TorchEngine | None = None) -> TorchEngine:
        """The engine over all ranks, for a run of so many training steps. All ranks call it."""
        device = next(self.model.parameters()).device
        module, sharding = shard(OutputModule(self.model, self.options), self.model, self.sharding, device)
        training = self.training
        return TorchEngine(
            self.model,
            module=module,
            sharding=sharding,
            adapter=self.adapter,
            options=self.options,
            scoring=self.scoring,
            train=None if training is None else training.batching,
            optimizer=None if training is None else optimizer_of(module, training.optim),
            schedule=None if training is None else training.schedule_for(total_steps),
            grad_clip=None if training is None else training.grad_clip,
            reference=reference,
            offload=self.offload,
        )
