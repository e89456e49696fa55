"""Several rules, of which each round uses the one that has gained tokens fastest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from svip_adapters.policies._arguments import require_number
from svip_adapters.policies._round_costs import MeasuresTime, RoundCosts
from svip_adapters.policies.combine import Combination
from svip_adapters.policy import DraftStep, LengthPolicy, Outcome, RoundContext

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Bandit"]

_FORGET = 0.98  # of what earlier rounds say, a round: what a text is like changes
_EXPLORE = 0.3


class Bandit(MeasuresTime, Combination):
    """Each round, the rule with the highest upper bound on its tokens a second (UCB).

    ``Bandit(Fixed(1), Fixed(5), SVIP())``; on a command line ``bandit:fixed:1+fixed:5+svip``. A round counts
    from one plan to the next. After TapOut and BanditSpec (arXiv 2505.15141), which choose among rules or
    settings in this way; the index is UCB1's, scaled by the mean rate, with old rounds forgotten.

    Args:
        rules: to choose from.
        draft_cost: a draft step in forwards of the target; None measures. verify_cost: a verified token.

    Raises:
        PolicyError: no rules, something that is none, or rules that differ in ``stops_before``.
    """

    stateless = False

    def __init__(
        self, *rules: LengthPolicy, draft_cost: float | None = None, verify_cost: float = 0.0
    ) -> None:
        super().__init__(*rules)
        if draft_cost is not None:
            require_number("Bandit", "draft_cost", draft_cost, positive=True)
        require_number("Bandit", "verify_cost", verify_cost)
        self.draft_cost = draft_cost
        self.max_length = max(rule.max_length for rule in rules)
        self._costs = RoundCosts(draft_cost, verify_cost)
        self._played = [0.0] * len(rules)
        self._tokens, self._seconds = [0.0] * len(rules), [0.0] * len(rules)
        self._arm = self._steps = 0

    def begin(self) -> None:
        """What was learnt of the rules is kept."""
        super().begin()
        self._costs.begin()

    def plan(self, context: RoundContext) -> int:
        finished = self._costs.plan()
        if finished is not None:
            self._count(*finished)
        self._arm, self._steps = max(range(len(self.rules)), key=self._index), 0
        rule = self.rules[self._arm]
        return min(rule.plan(context), rule.max_length)

    def _count(self, seconds: float, gained: int) -> None:
        for values in (self._played, self._tokens, self._seconds):
            values[:] = [_FORGET * value for value in values]
        self._played[self._arm] += 1
        self._tokens[self._arm] += gained
        self._seconds[self._arm] += seconds

    def _index(self, arm: int) -> float:
        if self._played[arm] < 1e-9 or not self._seconds[arm]:
            return math.inf
        mean = sum(self._tokens) / sum(self._seconds)
        bonus = math.sqrt(2 * math.log(1 + sum(self._played)) / self._played[arm])
        return self._tokens[arm] / self._seconds[arm] + _EXPLORE * mean * bonus

    def least_probability(self) -> float:
        return self.rules[self._arm].least_probability()

    def stop(self, step: DraftStep) -> Tensor:
        self._steps += 1
        return self.rules[self._arm].stop(step)

    def verified(self, outcome: Outcome) -> None:
        self._costs.verified(outcome.drafted, outcome.accepted, max(self._steps, outcome.depth))
        self.rules[self._arm].verified(outcome)
