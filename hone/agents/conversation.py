"""The token ids of one trajectory as it grows: what the model sampled stays as it is, the rest is written behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hone.agents.trajectory import Trajectory
from hone.rollout.interface import Completion


@dataclass
class Conversation:
    """`most` tokens of a response, sampled and rendered ones together; `longest` with the prompt."""

    prompt_ids: list[int]
    most: int
    longest: int
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)  # of the turns in response_mask
    turns: int = 0
    _earlier_reward: float = 0.0  # of turns that are no longer trained

    @property
    def ids(self) -> list[int]:
        return [*self.prompt_ids, *self.response_ids]

    @property
    def room(self) -> int:
        """Tokens that the next turn may have."""
        return min(self.most, self.longest - len(self.prompt_ids)) - len(self.response_ids)

    def sampled(self, completion: Completion) -> None:
        self._extend(completion.token_ids, 1, completion.logprobs, completion.versions)
        self.rewards.append(self._earlier_reward)
        self._earlier_reward = 0.0
        self.turns += 1

    def rendered(self, ids: Sequence[int]) -> bool:
        """Writes text of the template; False, and nothing is written, if no token could be sampled behind it."""
        if len(ids) >= self.room:
            return False
        self._extend(ids, 0, [0.0] * len(ids), [-1] * len(ids))
        return True

    def rewritten(self, ids: Sequence[int]) -> bool:
        """Replaces everything by `ids`, of which what begins like the prompt stays the prompt. They are context and not
        trained; the turns' rewards go to the next turn. False, and nothing is changed, if no token could be sampled
        behind them."""
        pairs = zip(ids, self.prompt_ids, strict=False)
        kept = next((place for place, (new, old) in enumerate(pairs) if new != old), len(self.prompt_ids))
        if len(ids) - kept >= self.most or len(ids) >= self.longest:
            return False
        self._earlier_reward += sum(self.rewards)
        self.prompt_ids = list(ids[:kept])
        self.response_ids, self.response_mask, self.logprobs, self.versions, self.rewards = [], [], [], [], []
        return self.rendered(ids[kept:])

    def reward(self, value: float) -> None:
        """To the turn that was sampled last."""
        self.rewards[-1] += value

    def trajectory(self, stop_reason: str) -> Trajectory:
        return Trajectory(
            prompt_ids=self.prompt_ids,
            response_ids=self.response_ids,
            response_mask=self.response_mask,
            logprobs=self.logprobs,
            versions=self.versions,
            stop_reason=stop_reason,
            num_turns=self.turns,
            turn_rewards=self.rewards if any(self.rewards) else [],
        )

    def _extend(self, ids: Sequence[int], sampled: int, logprobs: Sequence[float], versions: Sequence[int]) -> None:
        self.response_ids += ids
        self.response_mask += [sampled] * len(ids)
        self.logprobs += logprobs
        self.versions += versions
