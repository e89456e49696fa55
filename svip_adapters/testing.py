"""For tests: a conformance check for any policy, and two policies that adapter tests need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from svip_adapters._conformance import check_policy
from svip_adapters.errors import PolicyError
from svip_adapters.policies._arguments import require_integer
from svip_adapters.policy import DraftStep, LengthPolicy, Outcome, RoundContext

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RecordedStep", "RecordingPolicy", "ScriptedPolicy", "check_policy"]


class ScriptedPolicy(LengthPolicy):
    """Drafts exactly these lengths, round after round, then the same again; ``begin`` starts over.

    Args:
        lengths: tokens (chain) or levels (tree) of each round.
        by: "stop": ``stop`` ends each round, the plan being longer; "plan": the plan does.
        stops_before: as in ``LengthPolicy``. Without it a length of 0 is always left to the plan.

    Raises:
        PolicyError: no lengths, or one below 0.
    """

    stateless = False

    def __init__(
        self, lengths: Sequence[int], *, by: Literal["stop", "plan"] = "stop", stops_before: bool = False
    ) -> None:
        if not lengths:
            raise PolicyError(
                f"ScriptedPolicy expects at least one length, found {lengths!r}. Pass e.g. [3]."
            )
        for length in lengths:
            require_integer("ScriptedPolicy", "each length", length, low=0)
        self.lengths, self.by, self.stops_before = tuple(lengths), by, stops_before
        self.max_length = max(lengths) + (by == "stop")
        self.begin()

    def begin(self) -> None:
        self._round = -1

    def plan(self, context: RoundContext) -> int:
        self._round += 1
        length = self.lengths[self._round % len(self.lengths)]
        return length if self.by == "plan" or (length == 0 and not self.stops_before) else self.max_length

    def stop(self, step: DraftStep) -> Tensor:
        drafted = step.depth if self.stops_before else step.depth + 1
        reached = self.by == "stop" and drafted >= self.lengths[max(self._round, 0) % len(self.lengths)]
        return step.logits.new_full((step.logits.shape[0],), reached).bool()


class RecordedStep(NamedTuple):
    """One call of ``stop``: entropy (N,) in nats, drawn (N,) or None, the answer (N,)."""

    depth: int
    entropy: Tensor
    drawn: Tensor | None
    stopped: Tensor


class RecordingPolicy(LengthPolicy):
    """Hands everything on to ``inner`` and keeps what the host sent: ``begins`` (a count), ``contexts``,
    ``plans``, ``steps`` (a list of ``RecordedStep``) and ``outcomes``."""

    stateless = False

    def __init__(self, inner: LengthPolicy) -> None:
        self.inner, self.max_length, self.stops_before = inner, inner.max_length, inner.stops_before
        self.begins = 0
        self.contexts: list[RoundContext] = []
        self.plans: list[int] = []
        self.steps: list[RecordedStep] = []
        self.outcomes: list[Outcome] = []

    def begin(self) -> None:
        self.begins += 1
        self.inner.begin()

    def plan(self, context: RoundContext) -> int:
        self.contexts.append(context)
        self.plans.append(self.inner.plan(context))
        return self.plans[-1]

    def stop(self, step: DraftStep) -> Tensor:
        stopped = self.inner.stop(step)
        drawn = None if step.drawn is None else step.drawn.clone()
        self.steps.append(RecordedStep(step.depth, step.entropy, drawn, stopped))
        return stopped

    def verified(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.inner.verified(outcome)
