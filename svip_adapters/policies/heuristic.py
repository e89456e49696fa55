"""Hugging Face's schedule: two more after a full acceptance, one less after any rejection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svip_adapters.policies._arguments import never, require_integer
from svip_adapters.policy import DraftStep, LengthPolicy, Outcome, RoundContext

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Heuristic"]


@dataclass(eq=False)
class Heuristic(LengthPolicy):
    """Draft length n starts at 5; n + 2 when every drafted token was accepted, else n - 1; 1 <= n <= 40.

    Source: transformers ``AssistedCandidateGenerator.update_candidate_strategy`` (floor 1, no ceiling)
    and the ``heuristics`` baseline of the authors' SVIP code (start 5, clamp 1..40), whose numbers are
    the defaults. As there, n moves after every round, one cut short by the sequence's end included.

    ``begin`` goes back to the start, so that an answer does not depend on the prompts before it. That is
    transformers' schedule "heuristic_transient"; its "heuristic" carries n over to the next ``generate``
    through the assistant's generation config, and is otherwise the same.

    Args:
        start: length of the first round, 1..max_length.
        max_length: ceiling of n.

    Raises:
        PolicyError: an argument out of range.
    """

    stateless = False

    start: int = 5
    max_length: int = 40
    _n: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_integer("Heuristic", "max_length", self.max_length, low=1)
        require_integer("Heuristic", "start", self.start, low=1, high=self.max_length)
        self._n = self.start

    def begin(self) -> None:
        self._n = self.start

    def plan(self, context: RoundContext) -> int:
        return self._n

    def stop(self, step: DraftStep) -> Tensor:
        return never(step)

    def verified(self, outcome: Outcome) -> None:
        self._n = min(self._n + 2, self.max_length) if outcome.all_accepted else max(self._n - 1, 1)
