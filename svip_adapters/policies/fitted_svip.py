"""SVIP with its constant fitted to what the target accepts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svip_adapters.policies._arguments import require_integer, require_number
from svip_adapters.policy import DraftStep, LengthPolicy, Outcome

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FittedSVIP"]

_SCALE, _WEIGHT = 0.15, 20.0
_FORGET = 0.995


@dataclass(eq=False)
class FittedSVIP(LengthPolicy):
    """Stop once sqrt(c * H) > threshold, c such that 1 - sqrt(c * H) fits the tokens accepted so far.

    sqrt(c) is the least-squares slope of "refused" over sqrt(H), tokens after the first refused one left
    out; it starts at the authors' c = 0.15 with the weight of twenty nats. Kept from sequence to sequence.
    A baseline for ``RateOptimal``: is it the constant that SVIP lacks? On a tree only the first level is
    learnt from.

    Args:
        threshold: as SVIP's.
        max_length: most tokens (chain) or levels (tree) a round.

    Raises:
        PolicyError: an argument out of range.
    """

    stateless = False

    threshold: float = 0.3
    max_length: int = 40
    _refused: float = field(init=False, repr=False)
    _entropy: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_number("FittedSVIP", "threshold", self.threshold, positive=True)
        require_integer("FittedSVIP", "max_length", self.max_length, low=1)
        self._refused, self._entropy = _SCALE**0.5 * _WEIGHT, _WEIGHT
        self._steps: list[Tensor] = []

    def stop(self, step: DraftStep) -> Tensor:
        if step.depth == 0:
            self._steps = []
        if step.count == 1 and step.depth == len(self._steps):
            self._steps.append(step.entropy)
        return step.entropy.sqrt() * (self._refused / self._entropy) > self.threshold

    def verified(self, outcome: Outcome) -> None:
        import torch

        known = outcome.depth if outcome.depth == outcome.drafted else min(outcome.depth, 1)
        steps = self._steps[: min(known, outcome.accepted + 1)]
        for i, entropy in enumerate(torch.cat(steps).tolist() if steps else []):
            if entropy < float("inf"):
                refused = float(i >= outcome.accepted)
                self._refused = _FORGET * self._refused + refused * entropy**0.5
                self._entropy = _FORGET * self._entropy + entropy
        self._steps = []
