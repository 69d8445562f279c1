"""What a rank holds in each phase of a training step, on its device and in CPU memory: bytes that stay, and bytes that
come and go with the phase."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hone.trainers.planning.storage import Storage
from hone.trainers.planning.tracing import Peak
from hone.training.checkpoint import MODEL, OPTIMIZER
from hone.training.checkpoint_files import HF_MODEL
from hone.training.offload import OffloadOptions

ACTIVATIONS, GATHERED, CACHE = "activations", "gathered weights", "KV cache"
WHOLE_WEIGHTS, WHOLE_OPTIMISER = "whole weights", "whole optimiser"


@dataclass(frozen=True)
class Held:
    """A model that lives in every rank. cpu_policy: it lies in CPU memory for good, and layers visit the device."""

    role: str
    storage: Storage
    offload: OffloadOptions = OffloadOptions()
    cpu_policy: bool = False


@dataclass(frozen=True)
class Phase:
    """device, host: bytes by what takes them; unknown: why the activations are not among them"""

    name: str
    device: dict[str, int]
    host: dict[str, int] = field(default_factory=dict)
    unknown: str | None = None

    @property
    def peak(self) -> int:
        return sum(self.device.values())

    @property
    def host_peak(self) -> int:
        return sum(self.host.values())


@dataclass(frozen=True)
class Working:
    """What a pass takes beside what is held; a text says why it is not known."""

    peak: Peak | str
    gathered: int = 0


@dataclass(frozen=True)
class Rank:
    """The models of a rank on `kind`, cpu or cuda. On a CPU nothing lies elsewhere."""

    models: tuple[Held, ...]
    kind: str

    def phase(self, name: str, working: Working, *active: str) -> Phase:
        """Passes of the models in `active`; what the others offload is away."""
        return self._phase(name, working, set(active), stepping=None)

    def update(self, name: str, working: Working, role: str, *active: str) -> Phase:
        """Passes forward and back, then the optimiser's step, which needs its state when activations are gone: the
        larger of the two."""
        passes = self._phase(name, working, {role, *active}, stepping=None)
        step = self._phase(name, Working(Peak(0)), {role}, stepping=role)
        larger = max(passes, step, key=lambda phase: phase.peak)
        return Phase(name, larger.device, max(passes, step, key=lambda p: p.host_peak).host, passes.unknown)

    def with_parts(self, name: str, active: str, parts: Mapping[str, int]) -> Phase:
        """What is held, and other bytes by what takes them."""
        held = self.phase(name, Working(Peak(0)), active)
        return Phase(name, _positive({**held.device, **parts}), held.host)

    def _phase(self, name: str, working: Working, active: set[str], *, stepping: str | None) -> Phase:
        device: dict[str, int] = {}
        host: dict[str, int] = {}
        for model in self.models:
            for part, size, here in self._parts(model, active=model.role in active, stepping=model.role == stepping):
                where = device if here or self.kind == "cpu" else host
                where[part] = where.get(part, 0) + size
        if isinstance(working.peak, Peak):
            device[ACTIVATIONS] = working.peak.total
            host[ACTIVATIONS] = working.peak.host
        device[GATHERED] = working.gathered
        unknown = working.peak if isinstance(working.peak, str) else None
        return Phase(name, _positive(device), _positive(host), unknown)

    def _parts(self, model: Held, *, active: bool, stepping: bool) -> Iterator[tuple[str, int, bool]]:
        """(part, bytes, whether it lies on the device)"""
        held, offload = model.storage, model.offload
        yield "weights", held.weights, not model.cpu_policy and (active or not offload.weights)
        if active or not offload.weights:  # gradients of a step that is over go with the weights
            yield "gradients", held.gradients, not model.cpu_policy
        yield "optimiser", held.optimizer, not model.cpu_policy and (stepping or not offload.optimizer_state)


def saving(rank: Rank, role: str, storage: Storage, files: Collection[str]) -> Iterator[Phase]:
    """A role's part of a checkpoint: every rank gathers all of sharded weights and state, and an adapter is merged into
    a copy of the weights. Nothing else takes memory."""
    sharded, merged = storage.gathered > 0, bool(storage.adapter) and HF_MODEL in files
    whole = sharded and bool({MODEL, HF_MODEL} & set(files))
    parts = {
        WHOLE_WEIGHTS: storage.whole_weights * (whole + merged),
        WHOLE_OPTIMISER: storage.whole_optimizer if sharded and OPTIMIZER in files else 0,
    }
    if any(parts.values()):
        yield rank.with_parts(f"save {role}", role, parts)


def _positive(parts: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in parts.items() if size > 0}


def largest(phases: Iterable[Phase]) -> Phase:
    return max(phases, key=lambda phase: phase.peak)
