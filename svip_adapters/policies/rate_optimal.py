"""RateOptimal: stop when the next draft step no longer pays."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svip_adapters.policies._acceptance import Acceptance, features
from svip_adapters.policies._arguments import require_integer, require_number
from svip_adapters.policies._round_costs import MeasuresTime, RoundCosts
from svip_adapters.policy import DraftStep, LengthPolicy, Outcome, RoundContext

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RateOptimal"]

_DRAFT, _VERIFY = 0.23, 0.02  # d / c and v / c until they are known
_LEAST = 0.002  # a node less likely than this is never worth it
_TRY, _CAREFUL = 6, 4  # drafting rounds before their speed is judged, and tokens at most in one of them
_PROBE, _RARELY = 6, 48  # plain rounds between two tries, at first and at most
_LOOK = 64  # drafting rounds between two plain ones, which keep their speed known
_FURTHER = 16  # drafting rounds of which one goes on for a second token: its acceptance is learnt so


@dataclass(eq=False)
class RateOptimal(MeasuresTime, LengthPolicy):
    """Draft on while the next token is worth its time; draft nothing where drafting does not pay.

    Renewal-reward: a policy that gains N tokens in time T a round wants E[T] / E[N] least, and with c that
    optimum, the best decision at each step is the one that is best at c a token (Dinkelbach). One more
    draft step costs d, verifying its token v, and it gains a token if all before it and itself are accepted:
    so the draft goes on while

        S * q > (d + v) / c

    S: the drafted tokens' chance of all being accepted, the product of each one's, given its own
    distribution. q: that of the next one, as far as this distribution tells. Both are logistic in sqrt(H), in
    the log-odds of the draft's likeliest token and in recent acceptance, start from a prior near SVIP's bound
    1 - sqrt(0.15 * H) and are learnt from every round. c, d and v are measured as rounds go by, unless given.

    Before a round: where recent rounds that drafted took longer a token than rounds that did not, nothing is
    drafted, but for a try now and then, the rarer the longer it does not pay.

    Assumed: the next step is the one to judge by (no gain is hidden behind a step that does not pay itself),
    and costs change slowly. On a tree the path before a node counts with the draft's own probability, and a
    level is one draft step: its nodes are drafted on where S * q > v / c, if their S * q - v / c together
    exceed d / c. Where a chain is widened after it is drafted (CaPE), v is that of all tokens verified for a
    draft step. A host that must draft (EAGLE, GliDe) drafts one token where this rule would draft none.

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
        self._own = Acceptance((0.8, -0.9, 2.0, 1.0))
        self._next = Acceptance((0.4, -0.5, 1.0, 1.0))
        self._recent, self._width = (
            0.5,
            1.0,
        )  # the latter: tokens verified a draft step, more than 1 under CaPE
        self._waited, self._rest, self._since_plain, self._planned = 0, _PROBE, 0, 0
        self._losing = self._forced = self._further = False
        self._learnt: list[Tensor] = []
        self._survival: Tensor | None = None
        self._asked, self._bars = 0, (_DRAFT, _VERIFY)
        self._floor = 0.0  # set where the host drafts trees: it asks for it between plan and stop

    def begin(self) -> None:
        """What was learnt of draft, target and machine is kept."""
        self._costs.begin()

    def plan(self, context: RoundContext) -> int:
        self._costs.plan()
        draft, verify = self._costs.parts
        self._bars = self._share(draft, _DRAFT), self._share(verify, _VERIFY)  # d / c, v / c
        self._learnt, self._survival, self._asked, self._floor = [], None, 0, 0.0
        rounds = self._costs.rounds[True]
        self._further = rounds % _FURTHER == _FURTHER - 1
        self._planned = self.max_length
        if not self._drafts():
            self._planned = self._since_plain = 0
        elif rounds < _TRY or self._losing:
            self._planned = min(self.max_length, _CAREFUL)
        self._since_plain += self._planned > 0
        return self._planned

    def _drafts(self) -> bool:
        """Whether this round drafts: where that has been faster of late, and now and then to see."""
        drafting, plain = self._costs.per_token(True), self._costs.per_token(False)
        tried = self._costs.rounds
        if self._forced:
            return True
        if drafting is None or plain is None or tried[True] < _TRY:
            # What a token takes without a draft is seen twice between the first tries.
            return tried[False] >= tried[True] // 2
        self._losing = drafting >= plain
        if not self._losing:
            self._waited, self._rest = 0, _PROBE
            return self._since_plain < _LOOK
        self._waited += 1
        if self._waited <= self._rest:
            return False
        self._waited, self._rest = 0, min(2 * self._rest, _RARELY)
        return True

    def least_probability(self) -> float:
        """v / c: what verifying a node costs, in what a token is worth."""
        self._floor = min(max(self._bars[1], _LEAST), 0.9)
        return self._floor

    def stop(self, step: DraftStep) -> Tensor:
        inputs = features(step, self._recent)
        chance = self._own.of(inputs)
        if step.count == 1 and step.depth == len(self._learnt):
            self._learnt.append(inputs[0])
            chance = self._survival = chance if self._survival is None else self._survival * chance
        else:
            chance = step.path_logp.exp() * chance
        self._asked += 1
        (draft, verify), further = self._bars, self._next.of(inputs)
        if self._floor:  # a level of a tree: one draft step, however many of its nodes are drafted on
            gain = chance * further - verify
            likely = step.path_logp.exp() * step.top1_prob * further > self._floor  # enough to be verified
            gain = gain.masked_fill(~likely, 0.0)
            stop = ~((gain > 0) & (gain.clamp(min=0).nansum() > draft))
        else:  # rows are other sequences
            stop = ~(chance * further > draft + self._width * verify)
        return stop & (step.entropy == math.inf) if self._further and step.depth == 0 else stop

    def _share(self, cost: float, unknown: float) -> float:
        """``cost`` in what a token is worth, c: the faster way's time for one."""
        each = [r for r in (self._costs.per_token(True), self._costs.per_token(False)) if r is not None]
        return cost / min(each) if each else unknown

    def verified(self, outcome: Outcome) -> None:
        self._forced = self._forced or (outcome.drafted > 0 and not self._planned)
        steps = max(self._asked, outcome.depth)
        self._costs.verified(outcome.drafted, outcome.accepted, steps)
        if outcome.depth:
            self._width += 0.1 * (outcome.drafted / outcome.depth - self._width)
            self._recent += 0.1 * (min(outcome.accepted, 4) / min(outcome.depth, 4) - self._recent)
        # Of a tree only the first level is known: whether any of its nodes was accepted.
        known = outcome.depth if outcome.depth == outcome.drafted else min(outcome.depth, 1)
        rows = self._learnt[: min(known, outcome.accepted + 1)]
        for i, row in enumerate(_read(rows)):
            self._own.learn(row, i < outcome.accepted)
            if i < outcome.accepted and i + 1 < steps:  # of a tree, also a level too unlikely to be verified
                self._next.learn(row, i + 1 < outcome.accepted)


def _read(rows: list[Tensor]) -> list[list[float]]:
    """(4,) each, read from the device at once."""
    import torch

    return torch.stack(rows).tolist() if rows else []
