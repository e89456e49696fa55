"""Stop after a token the draft itself found unlikely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from svip_adapters.policies._arguments import require_integer, require_number
from svip_adapters.policy import DraftStep, LengthPolicy

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Confidence"]


@dataclass(frozen=True)
class Confidence(LengthPolicy):
    """Stop once the drawn token's probability is below ``threshold``; that token is kept and verified.

    Source: transformers ``ConfidenceCriteria`` (default 0.4, the default here; it reads processed scores,
    this rule the raw logits, and its online re-fit of the threshold is not part of the rule), Kangaroo
    (arXiv 2404.18911: top-1 probability, the same under a greedy draft), llama.cpp ``--draft-p-min``
    (which drops the token: exact for its greedy draft only, so no option here).

    Args:
        threshold: above 0, at most 1.
        max_length: most tokens a round.

    Raises:
        PolicyError: an argument out of range.
    """

    threshold: float = 0.4
    max_length: int = 40

    def __post_init__(self) -> None:
        require_number("Confidence", "threshold", self.threshold, positive=True, high=1.0)
        require_integer("Confidence", "max_length", self.max_length, low=1)

    def stop(self, step: DraftStep) -> Tensor:
        return step.drawn_prob < self.threshold
