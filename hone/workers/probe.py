"""Whether an engine with weights of its own has the trainer's: log-probs of a few tokens, after a hand-over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hone.batch import Batch
from hone.errors import UserError
from hone.rollout.interface import RolloutEngine, Sampling
from hone.training.engine import TorchEngine

PROMPTS = (
    "Is what samples the same as what is trained?",
    "1 + 2 = 3, 2 + 3 = 5, 3 + 5 =",
    "The quick brown fox jumps over",
    "def area(width, height):",
)
TOKENS = 8
FIRST = 2  # hand-overs that `first` looks at: what the engine begins with, and what the first update made of it
SAME_FORMAT, ROUNDED = 1e-3, 0.1  # mean differences allowed in fp32, and where something computes in 16 bits


@dataclass(frozen=True)
class Drawn:
    """A completion of the probe."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]


class WeightProbe:
    """Lets the engine draw some tokens and the trainer compute their log-probs; raises UserError where they differ.

    prompts: token ids; with TOKENS more they fit the engine
    name:    of the engine; `custom` is a class of the user's
    allowed: mean difference of a rank's log-probs
    """

    def __init__(
        self,
        engine: RolloutEngine,
        trainer: TorchEngine,
        prompts: Sequence[Sequence[int]],
        *,
        name: str,
        when: Literal["first", "always", "never"],
        allowed: float,
        tokens: int = TOKENS,
    ) -> None:
        self.engine, self.trainer, self.prompts, self.name, self.when, self.allowed, self.tokens = (
            engine, trainer, [list(p) for p in prompts], name, when, allowed, tokens,
        )  # fmt: skip
        self.hand_overs = 0

    @property
    def due(self) -> bool:
        """After the hand-over that has just been counted. At temperature 0 nothing is drawn from a distribution."""
        wanted = self.when == "always" or (self.when == "first" and self.hand_overs <= FIRST)
        return wanted and self.trainer.options.temperature > 0

    def after_hand_over(self, loop: asyncio.AbstractEventLoop, version: int) -> None:
        """Collective: all ranks score what each drew. A rank whose engine another one drives has no prompts."""
        self.hand_overs += 1
        if not self.due:
            return
        of_ranks = self.trainer.ranks.gather(loop.run_until_complete(self._draw()))
        drawn = [one for mine in of_ranks for one in mine]
        found = torch.tensor([value for one in drawn for value in one.logprobs])
        apart = (found - self._expected(drawn)).abs()
        ranks = torch.tensor([rank for rank, mine in enumerate(of_ranks) for one in mine for _ in one.token_ids])
        drew = ranks.unique().tolist()
        means = torch.stack([apart[ranks == rank].mean() for rank in drew])
        if not bool((means <= self.allowed).all()):  # NaN is no agreement either
            worst = drew[int(means.nan_to_num(torch.inf).argmax())]
            of_worst = apart[ranks == worst]
            raise self._differs(version, float(of_worst.mean()), float(of_worst.max()), worst)

    async def _draw(self) -> list[Drawn]:
        await self.engine.wake()
        temperature = self.trainer.options.temperature
        sampling = [
            Sampling(max_tokens=self.tokens, temperature=temperature, ignore_eos=True, seed=1000 + i)
            for i in range(len(self.prompts))
        ]
        answers = await asyncio.gather(
            *(self.engine.generate(p, s) for p, s in zip(self.prompts, sampling, strict=True))
        )
        return [Drawn(p, a.token_ids, a.logprobs) for p, a in zip(self.prompts, answers, strict=True)]

    def _expected(self, drawn: Sequence[Drawn]) -> Tensor:
        """The trainer's log-probs of the tokens drawn, one after the other."""
        batch = Batch.from_sequences(
            {
                "input_ids": [one.prompt_ids + one.token_ids for one in drawn],
                "response_mask": [[0] * len(one.prompt_ids) + [1] * len(one.token_ids) for one in drawn],
            }
        ).with_rows(prompt_length=torch.tensor([len(one.prompt_ids) for one in drawn]))
        return self.trainer.forward(batch, {"logprobs"})["logprobs"][batch["response_mask"].bool()]

    def _differs(self, version: int, mean: float, most: float, rank: int) -> UserError:
        key = "actor_rollout_ref.rollout"
        engine, way = f"{key}.name={self.name}", f"Try {key}.name=hf"
        if self.name == "custom":
            engine, way = f"{key}.agent.custom_async_server", "Look at what its update_weights does"
        return UserError(
            f"the engine of {engine} does not have the trainer's weights after step {version} (rank "
            f"{rank}): log-probs of the same tokens differ by {mean:.2g} on average and {most:.2g} at most, and "
            f"{self.allowed:g} on average is allowed. {way}; if the engine is meant to differ (it computes "
            f"with quantised weights, say), set {key}.verify_weights=never and look at training/rollout_probs_diff_mean"
        )


def allowed_difference(*dtypes: torch.dtype) -> float:
    """By the formats in which the engine and the trainer compute."""
    return SAME_FORMAT if set(dtypes) == {torch.float32} else ROUNDED
