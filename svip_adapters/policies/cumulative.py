"""Stop when the draft as a whole has become unlikely."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svip_adapters.policies._arguments import require_integer, require_number
from svip_adapters.policy import DraftStep, LengthPolicy

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Cumulative"]


@dataclass(frozen=True)
class Cumulative(LengthPolicy):
    """Stop once the product of the drawn tokens' probabilities is below ``threshold``; the last is kept.

    Source: the joint survival probability of the draft, asked for in ggml-org/llama.cpp issue 25096;
    SpecDec++ (arXiv 2405.19715) uses the same product of a trained head's estimates. No published
    default: 0.4 is Hugging Face's threshold for one token, taken over for the whole draft.

    Args:
        threshold: above 0, at most 1.
        max_length: most tokens a round.

    Raises:
        PolicyError: an argument out of range.
    """

    threshold: float = 0.4
    max_length: int = 40

    def __post_init__(self) -> None:
        require_number("Cumulative", "threshold", self.threshold, positive=True, high=1.0)
        require_integer("Cumulative", "max_length", self.max_length, low=1)

    def stop(self, step: DraftStep) -> Tensor:
        return step.path_logp + step.drawn_logp < math.log(self.threshold)
