"""What an agent sees of the model: one call that continues a list of token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol

from hone.agents.trajectory import Trajectory
from hone.data.prompts import Sample
from hone.rollout.interface import Completion, RolloutEngine, Sampling

if TYPE_CHECKING:
    from hone.agents.multi_turn import MultiTurn


@dataclass
class LLM:
    """A rollout engine with the sampling parameters of one trajectory; `sampling.max_tokens` bounds each call, and a
    whole response, and `max_model_len` that with its prompt. Token ids are below `vocabulary`, where it is known.

    `tokenizer` is the run's, and `multi_turn` what `rollout.multi_turn` asks for: tools, interactions and limits.
    """

    engine: RolloutEngine
    sampling: Sampling
    vocabulary: int | None = None
    calls: int = 0
    tokenizer: Any = None
    max_model_len: int | None = None
    multi_turn: MultiTurn | None = None

    async def generate(
        self, prompt_ids: Sequence[int], max_tokens: int | None = None, *, stop: Sequence[str] = ()
    ) -> Completion:
        """Continues `prompt_ids`; every call of a trajectory draws from its own stream of random numbers.

        Only the first token of the first call is drawn at `first_temperature`. The strings of `stop` end the completion
        as those of `rollout.stop` do.
        """
        ids = list(prompt_ids)
        if not ids or not all(issubclass(kind, Integral) for kind in set(map(type, ids))):
            raise TypeError(f"llm.generate takes a list of token ids, at least one, and not {prompt_ids!r:.80}")
        if min(ids) < 0 or (self.vocabulary is not None and max(ids) >= self.vocabulary):
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise ValueError(f"llm.generate takes token ids that the model knows, below {self.vocabulary}, not {wrong}")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"llm.generate has max_tokens={max_tokens}: it takes at least 1")
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(isinstance(string, str) and string for string in stop):
            raise ValueError(f"llm.generate has stop={stop!r:.80}: it takes texts that are not empty")
        sampling = dataclasses.replace(
            self.sampling,
            stop=(*self.sampling.stop, *stop),
            max_tokens=self.sampling.max_tokens if max_tokens is None else max_tokens,
            first_temperature=None if self.calls else self.sampling.first_temperature,
            seed=self.sampling.seed + self.calls * 0x5851F42D4C957F2D,
        )
        self.calls += 1
        return await self.engine.generate(ids, sampling)


class Agent(Protocol):
    async def run(self, sample: Sample, llm: LLM) -> Trajectory: ...
