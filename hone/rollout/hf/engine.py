"""The `hf` engine: requests join and leave a running batch.

A request waits until a slot is free; prompts that are the same (the n samples of a group) are computed once and their
keys copied to every slot; finished rows leave at once and the gaps are closed, so no row of the batch is ever idle.
What a finished row has in the cache stays there until its slot is needed: the next turn of a conversation, whose prompt
begins with it, computes only what is new.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hone.errors import UserError
from hone.models.attention import supports_layouts
from hone.rollout.hf.cache import Piece, PrefillLayout, SlotCache
from hone.rollout.hf.decode import Decoder
from hone.rollout.hf.next_tokens import NextTokens, append
from hone.rollout.hf.request import Prompt, Request, admissible
from hone.rollout.hf.sampling import RowSampling
from hone.rollout.hf.slots import Moves, Slots
from hone.rollout.interface import Completion, Sampling
from hone.rollout.requests import check_request
from hone.rollout.stop import StopReader


class HFEngine:
    """Generates with a transformers causal LM, in the process and with the tensors of whoever owns the model.

    max_num_seqs:           rows that run at once
    max_num_batched_tokens: prompt tokens computed in one forward call
    max_model_len:          prompt and response together
    enable_chunked_prefill: a longer prompt is computed in pieces of so many tokens; else whole, and alone
    tokenizer:              transformers', for requests with stop strings
    prompt_tokens:          how many tokens of prompts were computed; those that are shared or kept are not
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_token_ids: Iterable[int],
        max_num_seqs: int = 1024,
        max_num_batched_tokens: int = 8192,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        compute_dtype: torch.dtype = torch.float32,
        tokenizer: Any | None = None,
    ) -> None:
        if not supports_layouts(model):
            raise UserError(
                f"rollout.name=hf cannot run {type(model).__name__}: not all of its layers are attention "
                "called through transformers' registry; choose another rollout.name"
            )
        self.model = model
        self.next_tokens = NextTokens(model, compute_dtype)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.enable_chunked_prefill = enable_chunked_prefill
        self.cache = SlotCache()
        self.decoder = Decoder(self.next_tokens, self.cache)
        self.waiting: deque[Request] = deque()
        self.prompts: list[Prompt] = []  # that are being computed
        self.slots = Slots()
        self.version = self.prompt_tokens = 0
        self._stops = StopReader(tokenizer)
        self._loop: asyncio.Task[None] | None = None

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        check_request(prompt_ids, sampling, self.max_model_len)
        stop_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self.eos_token_ids)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = Request(tuple(prompt_ids), sampling, stop_ids, self._stops.of(sampling.stop), future)
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
        self.slots.clear_parked()

    async def sleep(self) -> None:
        if self.busy:
            raise RuntimeError("cannot free the KV cache while completions are running")
        self._forget()

    async def wake(self) -> None:
        """The cache is made anew when the next prompt arrives. Nothing is parked that older weights have computed: who
        owns the model may have changed it."""
        self.slots.clear_parked()

    @property
    def busy(self) -> bool:
        """Whether rows are in the cache that are not finished."""
        return bool(self.slots.running or self.prompts)

    async def _run(self) -> None:
        """Every pass takes waiting requests in, computes prompts up to the budget, and draws tokens of every row."""
        try:
            while self.waiting or self.busy:
                self._drop_cancelled()
                self._admit()
                if self.prompts:
                    self._prefill()
                if self.slots.running:
                    self._decode()
                await asyncio.sleep(0)
        except BaseException as error:
            for request in [*self._in_slots(), *self.waiting]:
                if not request.future.done():
                    request.future.set_exception(error)
            self.waiting.clear()
            self._forget()
            if not isinstance(error, Exception):
                raise

    @property
    def running(self) -> list[Request]:
        """Row r in slot r."""
        return self.slots.running_rows

    def _in_slots(self) -> list[Request]:
        return [*self.running, *(request for prompt in self.prompts for request in prompt.requests)]

    def _forget(self) -> None:
        """All rows and their keys, which may be wrong after an error."""
        self.prompts.clear()
        self.slots, self.decoder.sampling = Slots(), None
        self.cache.clear()

    def _drop_cancelled(self) -> None:
        if any(request.future.cancelled() for request in self.waiting):
            self.waiting = deque(request for request in self.waiting if not request.future.cancelled())
        gone = [row for row in self._in_slots() if row.future.cancelled()]
        if gone:
            self._move(self.slots.stop([row for row in self.running if row.future.cancelled()]))
            for row in gone:
                self.slots.leave(row)
            for prompt in self.prompts:
                prompt.requests = [row for row in prompt.requests if not row.future.cancelled()]
            self.prompts = [prompt for prompt in self.prompts if prompt.requests]

    def _admit(self) -> None:
        """Takes in the waiting requests that fit the free slots and the budget of prompt tokens. Equal prompts are
        computed once, and what a parked row has of one is kept."""
        slots = self.max_num_seqs - len(self._in_slots())
        if not self.waiting or not slots:
            return
        beginning = lru_cache(None)(self.slots.parked.longest_beginning)  # the n samples of a prompt ask alike

        def left(ids: tuple[int, ...]) -> int:
            row = beginning(ids)
            return len(ids) - (row.cached if row else 0)

        wanted = ((request.prompt_ids, left(request.prompt_ids)) for request in self.waiting)
        used = sum(prompt.left for prompt in self.prompts)
        prompts: dict[tuple[int, ...], Prompt] = {}
        for _ in range(admissible(wanted, slots, self.max_num_batched_tokens, used)):
            request = self.waiting.popleft()
            request.version = self.version
            prompts.setdefault(request.prompt_ids, Prompt(request.prompt_ids)).requests.append(request)
        self._enter([(prompt, beginning(ids)) for ids, prompt in prompts.items()])

    def _enter(self, prompts: list[tuple[Prompt, Request | None]]) -> None:
        """Gives slots to the requests of each prompt, and the keys and values of the parked row that it goes on from:
        the first request takes its slot over, the others get copies."""
        copies: list[tuple[Request, Request]] = []
        heirs: dict[Request, Request] = {}
        for prompt, parked in prompts:
            if parked is not None:
                prompt.done = parked.cached
                if parked not in heirs:
                    heirs[parked] = prompt.requests[0]
                    self.slots.take_over(prompt.requests[0], parked)
                copies += [(heirs[parked], request) for request in prompt.requests if request is not heirs[parked]]
        self.slots.enter(request for prompt, _ in prompts for request in prompt.requests if request.slot < 0)
        self.prompts += [prompt for prompt, _ in prompts]
        self.cache.reserve(len(self.slots.rows), max(row.longest for row in self._in_slots()))
        if copies:
            columns = max(prompt.done for prompt, _ in prompts)
            self.cache.copy([(heir.slot, request.slot) for heir, request in copies], columns)

    def _prefill(self) -> None:
        """Computes the next piece of every prompt that is taken in, more than one only where all fit the budget; those
        who have their whole prompt draw a first token and run."""
        most = self.max_num_batched_tokens if self.enable_chunked_prefill else self.max_model_len
        pieces = [Piece([r.slot for r in p.requests], p.done, min(p.left, most)) for p in self.prompts]
        ids = [token for prompt, piece in zip(self.prompts, pieces, strict=True) for token in piece.of(prompt.ids)]
        ends = torch.tensor([piece.length for piece in pieces]).cumsum(0).tolist()
        for prompt, piece in zip(self.prompts, pieces, strict=True):
            prompt.done += piece.length
        self.prompt_tokens += len(ids)
        drawn = [(r, end - 1) for p, end in zip(self.prompts, ends, strict=True) if not p.left for r in p.requests]
        device = self.next_tokens.device
        pick = torch.tensor([place for _, place in drawn], dtype=torch.int64)
        layout = PrefillLayout(self.cache, pieces, device)
        logits = self.next_tokens.logits(torch.tensor(ids, device=device), layout, pick)
        if drawn:
            rows = [row for row, _ in drawn]
            sampling = RowSampling.of([row.sampling_now for row in rows], device)
            append(rows, [self.next_tokens.draw(rows, logits, sampling, self.version)])
            self.prompts = [prompt for prompt in self.prompts if prompt.left]
            finished = _answered(rows)
            self._move(self.slots.start(row for row in rows if row.stop_reason is None))
            self._leave(finished)

    def _decode(self) -> None:
        rows = self.running
        self.decoder.run(rows, self.version, once=bool(self.prompts) or self._others_have_work())
        finished = _answered(rows)
        if finished:
            self._move(self.slots.stop(finished))
            self._leave(finished)

    def _others_have_work(self) -> bool:
        """Whether a task of this loop may do something else than wait for completions, such as call a tool. Two always
        do: the engine's own, and the one that waits for all of them."""
        return len(asyncio.all_tasks()) > len(self._in_slots()) + len(self.waiting) + 2

    def _leave(self, rows: list[Request]) -> None:
        """Finished rows are parked, unless some of their keys are of older weights."""
        for row in rows:
            if row.version == self.version:
                self.slots.park(row)
            else:
                self.slots.leave(row)

    def _move(self, moves: Moves) -> None:
        """After the running rows have changed."""
        self.decoder.sampling = None
        if moves:
            rows = self.slots.rows
            self.cache.copy(moves, max(row.cached for _, target in moves if (row := rows[target]) is not None))


def _answered(rows: list[Request]) -> list[Request]:
    """Those of the rows that are finished; they get their answers at once, whatever happens to the others."""
    finished = [row for row in rows if row.stop_reason is not None]
    for row in finished:
        row.finish()
    return finished
