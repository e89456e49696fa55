"""vLLM under a policy: one round of drafting for a batch, and what is kept of each request between rounds."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from svip_adapters.patching import PatchStats
from svip_adapters.policy import LengthPolicy, Outcome, RoundContext

from ._bridge import ChainRound, plan_length

__all__ = ["BatchRound", "Requests", "Row"]

KEPT = 4096  # requests that have ended and whose counts can still be read


@dataclass
class Row:
    """One request in one round.

    Attributes:
        request: vLLM's internal id.
        limit: most tokens to draft.
        ends: token ids after which nothing that is drafted can be used.
    """

    request: str
    policy: LengthPolicy
    limit: int
    ends: frozenset[int] = frozenset()
    length: int = 0
    steps: int = 0
    early: bool = False
    open: bool = field(init=False)

    def __post_init__(self) -> None:
        self.open = self.limit > 0


class BatchRound:
    """One round: puts each draft step to the rows' policies and keeps how long each row's draft is.

    A policy that all rows share is asked once a step, for all of them; one that learns once a row that
    still drafts.

    Args:
        rows: none where another process decides, which then says the ``limit``.

    Attributes:
        tokens: (B,) int64 a step, as drawn.
        probs: (B, V) a step where the host draws with probabilities, else empty.
    """

    def __init__(self, rows: Sequence[Row], limit: int | None = None) -> None:
        self.rows = rows
        self.limit = max((row.limit for row in rows), default=0) if limit is None else limit
        self.tokens: list[Tensor] = []
        self.probs: list[Tensor] = []
        shared = rows[0].policy if rows and rows[0].policy.stateless else None
        self._shared = ChainRound(shared, self.limit) if shared is not None else None
        self._each = [] if shared is not None else [ChainRound(row.policy, row.limit) for row in rows]

    def keep(self, drawn: Tensor, probs: Tensor | None) -> None:
        """Take up a step: (B,) int64, and (B, V) that it was drawn from, or None for an argmax."""
        self.tokens.append(drawn)
        if probs is not None:
            self.probs.append(probs)

    def ask(self, logits: Tensor) -> bool:
        """Whether any row goes on after the step that was kept last; ``logits`` (B, V), raw.

        Raises:
            Exception: whatever a policy raised; ``PolicyError`` where its answer has another type or shape.
        """
        depth = len(self.tokens)
        asked = [i for i, row in enumerate(self.rows) if row.open]
        for i, stop, token in self._ask(logits, self.tokens[-1], asked):
            row = self.rows[i]
            before = row.policy.stops_before
            row.steps = depth
            row.length = depth - (before and stop)
            row.early = stop and (before or depth < row.limit)
            row.open = not stop and depth < row.limit and token not in row.ends
        return any(row.open for row in self.rows)

    def _ask(self, logits: Tensor, drawn: Tensor, asked: list[int]) -> list[tuple[int, bool, int]]:
        """(row, whether to stop, token drawn) of each row that is still open; one read from the device."""
        if self._shared is not None:
            rounds, stop = [self._shared], self._shared.ask(logits, drawn)
        else:
            rounds = [self._each[i] for i in asked]
            each = {i: self._each[i].ask(logits[i : i + 1], drawn[i : i + 1]) for i in asked}
            closed = torch.ones_like(drawn[:1], dtype=torch.bool)
            stop = torch.cat([each.get(i, closed) for i in range(len(self.rows))])
        for current in rounds:
            if current.error is not None:
                raise current.error
        stops, tokens = torch.stack((stop.to(drawn.dtype), drawn)).tolist()
        return [(i, bool(stops[i]), tokens[i]) for i in asked]


@dataclass
class _Live:
    """A request that runs: its policy, its counts, and the round that the target has yet to verify."""

    policy: LengthPolicy
    stats: PatchStats
    pending: Row | None = None


class Requests:
    """What is kept of each request between rounds.

    Args:
        policy: the rule. One that learns is copied for each request; what the request that ended last has
            taught it goes into the next copies, where ``begin`` decides how much of it is kept.
        total: counts of all requests.
    """

    def __init__(self, policy: LengthPolicy, total: PatchStats) -> None:
        self._policy = policy
        self._total = total
        self._live: dict[str, _Live] = {}
        self._ended: OrderedDict[str, PatchStats] = OrderedDict()

    @property
    def stats(self) -> dict[str, PatchStats]:
        """Counts by request: of all that run, and of the last 4096 that ended."""
        return {**self._ended, **{request: live.stats for request, live in self._live.items()}}

    def plan(self, request: str, context: RoundContext, most: int, ends: frozenset[int]) -> Row:
        """The request's next round, of ``most`` tokens at most; pending until ``verified``."""
        live = self._live.get(request)
        if live is None:
            policy = self._policy if self._policy.stateless else copy.deepcopy(self._policy)
            policy.begin()
            # A preempted request that goes on has counts already.
            live = self._live[request] = _Live(policy, self._ended.pop(request, PatchStats()))
        limit = min(plan_length(live.policy, context), most) if context.remaining and most else 0
        live.pending = Row(request, live.policy, limit, ends)
        return live.pending

    def idle(self, request: str) -> Row:
        """A row that drafts nothing and is not counted: of a prompt that is not read to its end."""
        return Row(request, self._policy, 0)

    def verified(self, request: str, drafted: int, accepted: int) -> None:
        """The target has seen the request's pending round; ``drafted`` is what the scheduler let through."""
        live = self._live.get(request)
        if live is None or live.pending is None:
            return
        row, live.pending = live.pending, None
        outcome = Outcome(drafted=drafted, accepted=accepted)
        live.stats.add_round(outcome, draft_steps=row.steps, early_stop=row.early)
        self._total.add_round(outcome, draft_steps=0, early_stop=row.early)
        if drafted:
            live.policy.verified(outcome)

    def lose(self) -> None:
        """Nothing was drafted, and what became of the last round was not told."""
        for live in self._live.values():
            live.pending = None

    def forget(self, requests: Iterable[str]) -> list[tuple[str, PatchStats]]:
        """Drop the state of requests that ended or were preempted; their counts are kept, and returned."""
        left = [(request, self._live.pop(request)) for request in requests if request in self._live]
        for _, live in left:
            self._policy = live.policy
        gone = [(request, live.stats) for request, live in left]
        self._ended.update(gone)
        while len(self._ended) > KEPT:
            self._ended.popitem(last=False)
        return gone
