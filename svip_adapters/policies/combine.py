"""Several rules as one: stop when any of them stops, or when all of them do."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from svip_adapters.errors import PolicyError
from svip_adapters.policies._arguments import never
from svip_adapters.policy import DraftStep, LengthPolicy, Outcome, RoundContext

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AllOf", "AnyOf", "Combination"]


class Combination(LengthPolicy):
    """What they have in common: every child hears everything, and all stop on the same side of the draw.

    A child that stops before drawing may not see the token, one that stops after it asks about a token
    that is already there: no single question serves both, so a mixture is refused.
    """

    def __init__(self, *rules: LengthPolicy) -> None:
        name = type(self).__name__
        if not rules or not all(isinstance(rule, LengthPolicy) for rule in rules):
            raise PolicyError(
                f"{name} expects one or more LengthPolicy objects, found {rules!r}. "
                f"Pass rules, e.g. {name}(SVIP(), Fixed(5))."
            )
        if len({rule.stops_before for rule in rules}) > 1:
            raise PolicyError(
                f"{name} expects all its rules to stop on the same side of the draw, found "
                + ", ".join(f"{rule!r}: stops_before={rule.stops_before}" for rule in rules)
                + ". Give all of them the same stops_before."
            )
        self.rules = rules
        self.stops_before = rules[0].stops_before

    def begin(self) -> None:
        for rule in self.rules:
            rule.begin()

    def verified(self, outcome: Outcome) -> None:
        for rule in self.rules:
            rule.verified(outcome)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.rules))})"


class AnyOf(Combination):
    """Stop as soon as one of ``rules`` stops; draft no more than the smallest of their plans.

    ``AnyOf(SVIP(), Cumulative(0.2))``; on a command line ``any:svip+cumulative:threshold=0.2``.

    Raises:
        PolicyError: no rules, something that is none, or rules that differ in ``stops_before``.
    """

    def __init__(self, *rules: LengthPolicy) -> None:
        super().__init__(*rules)
        self.max_length = min(rule.max_length for rule in rules)
        self.stateless = all(rule.stateless for rule in rules)

    def least_probability(self) -> float:
        return max(rule.least_probability() for rule in self.rules)

    def plan(self, context: RoundContext) -> int:
        return min([rule.plan(context) for rule in self.rules])

    def stop(self, step: DraftStep) -> Tensor:
        return reduce(or_, [rule.stop(step) for rule in self.rules])


class AllOf(Combination):
    """Stop when every one of ``rules`` has stopped; draft no more than the largest of their plans.

    A rule whose own plan is used up counts as stopped: ``AllOf(Fixed(3), SVIP())`` drafts at least three
    tokens and then until SVIP stops; on a command line ``all:fixed:3+svip``. The plans of the current
    round are state, so a host that decodes several sequences keeps one copy for each.

    Raises:
        PolicyError: no rules, something that is none, or rules that differ in ``stops_before``.
    """

    stateless = False

    def __init__(self, *rules: LengthPolicy) -> None:
        super().__init__(*rules)
        self.max_length = max(rule.max_length for rule in rules)
        self._plans = [rule.max_length for rule in rules]

    def least_probability(self) -> float:
        return min(rule.least_probability() for rule in self.rules)

    def plan(self, context: RoundContext) -> int:
        self._plans = [rule.plan(context) for rule in self.rules]
        return max(self._plans)

    def stop(self, step: DraftStep) -> Tensor:
        length = step.depth if self.stops_before else step.depth + 1
        going = [rule.stop(step) for rule, plan in zip(self.rules, self._plans, strict=True) if length < plan]
        return reduce(and_, going) if going else ~never(step)
