"""What a replayed rule did on one text, or would do on average, and how each host's rounds go."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svip_adapters.policies._round_costs import MeasuresTime
from svip_adapters.policy import LengthPolicy

from ..errors import BenchError

if TYPE_CHECKING:
    from .costs import CostModel

__all__ = ["HOST_ROUNDS", "Expected", "Replayed", "Rounds", "Turn", "keep_time"]


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
    def rounds(self) -> int:
        """Forwards of the target."""
        return len(self.accept_lengths)

    @property
    def tokens(self) -> int:
        """New ones."""
        return sum(self.accept_lengths)

    @property
    def drafted(self) -> int:
        """Tokens of chains, levels of trees."""
        return sum(self.draft_lengths)

    @property
    def reads(self) -> float:
        """Whether the draft has read the prompt: 0 or 1."""
        return float(self.draft_steps > 0)

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


@dataclass
class Expected:
    """Mean counts of one turn, over what may be accepted; names as in ``Replayed``.

    Attributes:
        draws: what was averaged; none where the mean is exact.
    """

    rounds: float = 0.0
    tokens: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    reads: float = 0.0
    target: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    draft: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    draws: Sequence[Replayed] = ()

    @classmethod
    def mean(cls, draws: Sequence[Replayed]) -> Expected:
        """Of some draws of the same turn."""
        found = cls(draws=draws)
        for turn in draws:
            found.add(1 / len(draws), turn)
            found.reads += turn.reads / len(draws)
        return found

    @property
    def draft_steps(self) -> float:
        """Forwards of the draft."""
        return sum(self.draft.values())

    @property
    def nodes_verified(self) -> float:
        """Drafted tokens sent to the target."""
        return sum(nodes * forwards for nodes, forwards in self.target.items())

    def add(self, share: float, done: Replayed) -> None:
        """Rounds that are had with this probability; ``reads`` is of the whole turn and left as it is."""
        self.rounds += share * done.rounds
        self.tokens += share * done.tokens
        self.drafted += share * done.drafted
        self.accepted += share * done.accepted
        for mine, theirs in ((self.target, done.target), (self.draft, done.draft)):
            for size, forwards in theirs.items():
                mine[size] += share * forwards


Turn = Replayed | Expected


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
