"""RateOptimal: stop when the next draft step no longer pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svip_adapters.policies._acceptance import Acceptance, features, log_sigmoid
from svip_adapters.policies._arguments import require_integer, require_number
from svip_adapters.policies._round_costs import RoundCosts
from svip_adapters.policy import DraftStep, LengthPolicy, Outcome, RoundContext

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RateOptimal"]

_BAR = 0.25
_KEEP = 0.98
_LEAST = 0.02  # a node less likely than this is never worth it
_TRY = 6  # drafting rounds before their speed is judged
_PROBE, _RARELY = 6, 48  # plain rounds between two tries, at first and at most


@dataclass(eq=False)
class RateOptimal(LengthPolicy):
    """Draft on while the next token is worth its time; draft nothing where drafting does not pay.

    Renewal-reward: a policy that gains N tokens in time T a round wants E[T] / E[N] least, and with c that
    optimum, the best decision at each step is the one that is best at c a token (Dinkelbach). One more
    draft step costs d, verifying its token v, and it gains a token if all before it and itself are accepted:
    so the draft goes on while

        S * q > (d + v) / c

    S: the chance that all drafted tokens are accepted: the last one's, given its own distribution, times that
    of the path before it, which is the draft's probability of it, to a fitted power. q: the next one's, as
    far as this distribution tells. Both chances are logistic in sqrt(H), in the log-odds of the draft's
    likeliest token and in recent acceptance; they start from a prior near SVIP's bound 1 - sqrt(0.15 * H) and
    are learnt from every round. c, d and v are measured as rounds go by, unless given.

    Before a round: where recent rounds that drafted took longer a token than rounds that did not, nothing is
    drafted, but for a try now and then, the rarer the longer it does not pay.

    Assumed: the next step is the one to judge by (no gain is hidden behind a step that does not pay itself),
    and costs change slowly.

    Args:
        draft_cost: a draft step in forwards of the target; None measures.
        verify_cost: a further verified token in forwards of the target; used with ``draft_cost``.
        max_length: most tokens (chain) or levels (tree) a round.

    Raises:
        PolicyError: an argument out of range.
    """

    stateless = False

    draft_cost: float | None = None
    verify_cost: float = 0.0
    max_length: int = 40
    _costs: RoundCosts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.draft_cost is not None:
            require_number("RateOptimal", "draft_cost", self.draft_cost, positive=True)
        require_number("RateOptimal", "verify_cost", self.verify_cost)
        require_integer("RateOptimal", "max_length", self.max_length, low=1)
        self._costs = RoundCosts(self.draft_cost, self.verify_cost)
        self._own = Acceptance((0.8, -0.9, 0.5, 1.0))
        self._next = Acceptance((0.4, -0.5, 0.25, 1.0))
        self._recent, self._wait, self._rest = 0.5, 0, _PROBE
        self._learnt: list[Tensor] = []
        self._accepted_logp = self._draft_logp = -1.0

    @property
    def clock(self) -> Callable[[], float]:
        """What it measures by, seconds; a replay sets its own."""
        return self._costs.clock

    @clock.setter
    def clock(self, clock: Callable[[], float]) -> None:
        self._costs.clock = clock

    def begin(self) -> None:
        """What was learnt of draft, target and machine is kept."""
        self._costs.begin()

    def plan(self, context: RoundContext) -> int:
        self._costs.plan()
        self._learnt = []
        drafting, plain = self._costs.per_token(True), self._costs.per_token(False)
        tried = self._costs.rounds
        if tried[True] == 2 and not tried[False]:
            return 0  # what a round without a draft takes must be seen once
        if drafting is None or plain is None or tried[True] < _TRY or drafting < plain:
            self._wait, self._rest = 0, _PROBE
            return self.max_length
        self._wait += 1
        if self._wait <= self._rest:
            return 0
        self._wait, self._rest = 0, min(2 * self._rest, _RARELY)
        return self.max_length

    def least_probability(self) -> float:
        """v / c: what verifying a node costs, in what a token is worth."""
        worth = self._worth()
        return min(max(self._costs.token / worth, _LEAST), 0.9) if worth else _LEAST

    def stop(self, step: DraftStep) -> Tensor:
        self._costs.asked()
        inputs = features(step, self._recent)
        if step.count == 1:
            self._learnt.append(inputs[0])
        before = (step.path_logp * (self._accepted_logp / self._draft_logp)).exp()
        return ~(before * self._own.of(inputs) * self._next.of(inputs) > self._bar())

    def _worth(self) -> float:
        """c; 0 until it is known."""
        each = [r for r in (self._costs.per_token(True), self._costs.per_token(False)) if r is not None]
        return min(each, default=0.0)

    def _bar(self) -> float:
        """(d + v) / c; a guess until they are known."""
        worth = self._worth()
        return (self._costs.step + self._costs.token) / worth if worth else _BAR

    def verified(self, outcome: Outcome) -> None:
        steps = max(len(self._learnt), outcome.depth)
        self._costs.verified(outcome.drafted, outcome.accepted, steps)
        if outcome.depth:
            self._recent += 0.1 * (min(outcome.accepted, 4) / min(outcome.depth, 4) - self._recent)
        # Of a tree only the first level is known: whether any of its nodes was accepted.
        known = outcome.depth if outcome.depth == outcome.drafted else min(outcome.depth, 1)
        rows = [row.tolist() for row in self._learnt[: min(known, outcome.accepted + 1)]]
        for i, row in enumerate(rows):
            self._own.learn(row, i < outcome.accepted)
            if i < outcome.accepted and i + 1 < outcome.depth:
                self._next.learn(row, i + 1 < outcome.accepted)
        if known > 1:
            self._calibrate(rows)

    def _calibrate(self, rows: list[list[float]]) -> None:
        """A path's chance is the draft's own, to a power: mean log-chance of acceptance over mean log p."""
        for row in rows:
            self._accepted_logp = _KEEP * self._accepted_logp + log_sigmoid(self._own.score(row))
            self._draft_logp = _KEEP * self._draft_logp + log_sigmoid(row[2])
