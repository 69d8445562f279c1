"""The `hf` engine: requests join and leave a running batch at every token.

A request waits until a slot is free; prompts that are the same (the n samples of a group) are computed once and their
keys copied to every slot; finished rows leave at once and the gaps are closed, so no row of the batch is ever idle.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hone.errors import UserError
from hone.models.attention import Layout, layout_attention, supports_layouts
from hone.models.forward import run_layout
from hone.models.heads import LogitHead
from hone.models.precision import autocast
from hone.rollout.hf.cache import DecodeLayout, PrefillLayout, SlotCache
from hone.rollout.hf.sampling import RowSampling, penalise_repetition, sample, uniforms
from hone.rollout.interface import Completion, Sampling
from hone.rollout.requests import check_request, no_distribution


@dataclass(eq=False)
class Request:
    """A completion on its way."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stop_ids: frozenset[int]
    future: asyncio.Future[Completion]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    stop_reason: Literal["stop", "length"] | None = None  # None while it runs

    @property
    def sampling_now(self) -> Sampling:
        """How the next token is drawn: the first one may have a temperature of its own, and is then not cut."""
        first = self.sampling.first_temperature
        if first is None or self.token_ids:
            return self.sampling
        return replace(self.sampling, temperature=first, top_k=-1, top_p=1.0, min_p=0.0)

    def append(self, token: int, logprob: float, version: int) -> None:
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.stop_ids:
            self.stop_reason = "stop"
        elif len(self.token_ids) >= self.sampling.max_tokens:
            self.stop_reason = "length"

    def finish(self) -> None:
        if not self.future.done():
            assert self.stop_reason is not None
            self.future.set_result(Completion(self.token_ids, self.logprobs, self.stop_reason, self.versions))


def admissible(prompts: Iterable[tuple[Hashable, int]], slots: int, max_tokens: int) -> int:
    """How many of the waiting (prompt, its tokens) fit the free slots and the budget of tokens. A prompt is computed
    once, and one that is longer than the budget alone."""
    seen: set[Hashable] = set()
    count = tokens = 0
    for prompt, length in prompts:
        tokens += 0 if prompt in seen else length
        if count == slots or (count and tokens > max_tokens):
            break
        seen.add(prompt)
        count += 1
    return count


@torch.no_grad()
def next_logits(
    model: PreTrainedModel,
    head: LogitHead,
    input_ids: Tensor,
    layout: Layout,
    pick: Tensor | None,
    compute_dtype: torch.dtype,
) -> Tensor:
    """Logits [rows, V] of the tokens that follow those at `pick` of the layout; None: at all of them."""
    with layout_attention(model), autocast(input_ids.device, model.dtype, compute_dtype):
        hidden = run_layout(model, input_ids, layout, None if pick is None else pick.to(input_ids.device))
        return head.logits(hidden)


class HFEngine:
    """Generates with a transformers causal LM, in the process and with the tensors of whoever owns the model.

    max_num_seqs:           rows that run at once
    max_num_batched_tokens: prompt tokens computed in one forward call (a longer prompt is computed alone)
    max_model_len:          prompt and response together
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_token_ids: Iterable[int],
        max_num_seqs: int = 1024,
        max_num_batched_tokens: int = 8192,
        max_model_len: int,
        compute_dtype: torch.dtype = torch.float32,
    ) -> None:
        if not supports_layouts(model):
            raise UserError(
                f"rollout.name=hf cannot run {type(model).__name__}: not all of its layers are attention "
                "called through transformers' registry; choose another rollout.name"
            )
        self.model = model
        self.head = LogitHead.of(model)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.compute_dtype = compute_dtype
        self.cache = SlotCache()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # running[r] is in slot r
        self.version = 0
        self._loop: asyncio.Task[None] | None = None
        self._rows: RowSampling | None = None

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        check_request(prompt_ids, sampling, self.max_model_len)
        stop = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self.eos_token_ids)
        request = Request(tuple(prompt_ids), sampling, stop, asyncio.get_running_loop().create_future())
        self.waiting.append(request)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run())
        return await request.future

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        if weights is not None:
            own = self.model.state_dict()
            for name, tensor in weights:
                own[name].copy_(tensor)
        self.version = version

    async def sleep(self) -> None:
        if self.running:
            raise RuntimeError("cannot free the KV cache while completions are running")
        self.cache.clear()

    async def wake(self) -> None:
        """The cache is made anew when the next prompt arrives."""

    async def _run(self) -> None:
        try:
            while self.waiting or self.running:
                self._drop_cancelled()
                admitted = self._admit()
                if admitted:
                    self._prefill(admitted)
                elif self.running:
                    self._decode()
                await asyncio.sleep(0)
        except BaseException as error:
            for request in [*self.running, *self.waiting]:
                if not request.future.done():
                    request.future.set_exception(error)
            self.running, self._rows = [], None
            self.waiting.clear()
            if not isinstance(error, Exception):
                raise

    def _drop_cancelled(self) -> None:
        if any(r.future.cancelled() for r in self.running):
            self._keep([not r.future.cancelled() for r in self.running])
        if any(r.future.cancelled() for r in self.waiting):
            self.waiting = deque(r for r in self.waiting if not r.future.cancelled())

    def _admit(self) -> list[Request]:
        """The waiting requests that fit the free slots and the budget of prompt tokens, same prompts counted once."""
        prompts = ((request.prompt_ids, len(request.prompt_ids)) for request in self.waiting)
        count = admissible(prompts, self.max_num_seqs - len(self.running), self.max_num_batched_tokens)
        return [self.waiting.popleft() for _ in range(count)]

    def _prefill(self, admitted: list[Request]) -> None:
        prompts = list(dict.fromkeys(r.prompt_ids for r in admitted))
        place = {prompt: i for i, prompt in enumerate(prompts)}
        lengths = [len(p) for p in prompts]
        first = len(self.running)
        self.running = self.running + admitted
        self._rows = None
        self.cache.reserve(len(self.running), max(len(r.prompt_ids) + r.sampling.max_tokens for r in self.running))
        of_slot = [place[r.prompt_ids] for r in admitted]
        layout = PrefillLayout(self.cache, lengths, of_slot, first, self.model.device)
        last = torch.tensor(lengths).cumsum(0) - 1
        self._advance([t for p in prompts for t in p], layout, first=first, pick=last[torch.tensor(of_slot)])
        self._rows = None  # the first token may have had parameters of its own

    def _decode(self) -> None:
        positions = torch.tensor([len(r.prompt_ids) + len(r.token_ids) - 1 for r in self.running])
        layout = DecodeLayout(self.cache, positions.to(self.model.device), int(positions.max()))
        self._advance([r.token_ids[-1] for r in self.running], layout, first=0, pick=None)

    @torch.no_grad()
    def _advance(self, input_ids: list[int], layout: Layout, *, first: int, pick: Tensor | None) -> None:
        """Runs the tokens and gives every row from `first` on its next one; `pick` names the states that predict it."""
        if self.model.training:
            self.model.eval()
        ids = torch.tensor(input_ids, device=self.model.device)
        logits = next_logits(self.model, self.head, ids, layout, pick, self.compute_dtype)
        self._append(self.running[first:], *self._draw(logits, first))

    def _draw(self, logits: Tensor, first: int) -> tuple[list[int], list[float]]:
        rows, sampling = self.running[first:], self._sampling_rows(first, logits.device)
        if sampling.penalises:
            seen = [[*r.prompt_ids, *r.token_ids] for r in rows]
            logits = penalise_repetition(logits, seen, [r.sampling.repetition_penalty for r in rows])
        positions = np.array([len(r.token_ids) for r in rows], dtype=np.uint64)
        uniform = torch.from_numpy(uniforms(sampling.seeds, positions)).to(logits.device)
        tokens, logprobs = sample(logits, sampling, uniform)
        drawn = logprobs.tolist()
        if not math.isfinite(sum(drawn)):  # one NaN among a row's logits is in all of its log-probs
            raise no_distribution(self.version, str(self.compute_dtype).removeprefix("torch."))
        return tokens.tolist(), drawn

    def _sampling_rows(self, first: int, device: torch.device) -> RowSampling:
        if self._rows is None or first:
            rows = RowSampling.of([r.sampling_now for r in self.running[first:]], device)
            if first:
                return rows
            self._rows = rows
        return self._rows

    def _append(self, rows: list[Request], tokens: list[int], logprobs: list[float]) -> None:
        stays = [True] * (len(self.running) - len(rows))  # those before had no token in this pass, and go on
        for request, token, logprob in zip(rows, tokens, logprobs, strict=True):
            request.append(token, logprob, self.version)
            stays.append(request.stop_reason is None)
            if not stays[-1]:
                request.finish()
        if not all(stays):
            self._keep(stays)

    def _keep(self, stays: list[bool]) -> None:
        """Closes the gaps: the last rows move into the slots of those that leave."""
        left = sum(stays)
        gaps = [r for r in range(left) if not stays[r]]
        movers = [r for r in range(left, len(stays)) if stays[r]]
        for gap, mover in zip(gaps, movers, strict=True):
            self.running[gap] = self.running[mover]
        if movers:
            columns = max(len(self.running[gap].prompt_ids) + len(self.running[gap].token_ids) for gap in gaps)
            device = self.model.device
            self.cache.move(torch.tensor(movers, device=device), torch.tensor(gaps, device=device), columns)
        self.running = self.running[:left]
        self._rows = None
