"""What a replayed rule did on one text, and how each host's rounds go."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svip_adapters.policies._round_costs import MeasuresTime
from svip_adapters.policy import LengthPolicy

from ..errors import BenchError

if TYPE_CHECKING:
    from .costs import CostModel

__all__ = ["HOST_ROUNDS", "Replayed", "Rounds", "keep_time"]


@dataclass(frozen=True)
class Rounds:
    """How a host's rounds go.

    Attributes:
        free_first: the forward over the prompt gains a token; otherwise the first draft goes with it.
        least: tokens (chain) or levels (tree) that are drafted at least.
        knows_end: a policy is told how much is left, and no draft is longer.
        reports_last: the round that ends an answer is reported to the policy as well.
    """

    free_first: bool
    least: int
    knows_end: bool
    reports_last: bool


HOST_ROUNDS = {
    "transformers": Rounds(free_first=False, least=0, knows_end=True, reports_last=True),
    "glide": Rounds(free_first=True, least=1, knows_end=False, reports_last=True),
    "glide_cape": Rounds(free_first=True, least=1, knows_end=False, reports_last=True),
    "eagle2": Rounds(free_first=True, least=1, knows_end=False, reports_last=False),
}


@dataclass
class Replayed:
    """Counts of one turn, as in ``Generation``, and what its time depends on.

    Attributes:
        target: {drafted tokens that a forward of the target verified: forwards}.
        draft: {rows of a forward of the draft: forwards}.
    """

    accept_lengths: list[int] = field(default_factory=list)
    draft_lengths: list[int] = field(default_factory=list)
    accepted: int = 0
    target: Counter[int] = field(default_factory=Counter)
    draft: Counter[int] = field(default_factory=Counter)

    @property
    def draft_steps(self) -> int:
        """Forwards of the draft."""
        return self.draft.total()

    @property
    def nodes_verified(self) -> int:
        """Drafted tokens sent to the target."""
        return sum(nodes * forwards for nodes, forwards in self.target.items())

    def add(self, *, gained: int, length: int = 0, nodes: int = 0, accepted: int = 0) -> None:
        """One round; ``length``: of the chain, depth of the tree."""
        self.accept_lengths.append(gained)
        self.draft_lengths.append(length)
        self.accepted += accepted
        self.target[nodes] += 1


def keep_time(policy: LengthPolicy, done: Replayed, costs: CostModel | None) -> None:
    """Let a rule that measures time measure the modelled time of a replay as it goes by.

    Raises:
        BenchError: the replay models no time.
    """
    for rule in getattr(policy, "rules", ()):
        keep_time(rule, done, costs)
    if not isinstance(policy, MeasuresTime):
        return
    if costs is not None:
        policy.clock = lambda: costs.seconds(done, 0)
    elif getattr(policy, "draft_cost", None) is None:
        raise BenchError(
            f"expected a cost model to replay {policy!r}, which measures time, found none; give it one."
        )
