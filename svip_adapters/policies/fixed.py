"""The classic draft length: always the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svip_adapters.policies._arguments import never, require_integer
from svip_adapters.policy import DraftStep, LengthPolicy

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Fixed"]


@dataclass(frozen=True)
class Fixed(LengthPolicy):
    """Draft ``n`` tokens every round; 0 never drafts.

    Source: Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318), where n is called
    gamma and K. SVIP's baseline is n = 5. No default: the best n depends on the pair of models.

    Raises:
        PolicyError: ``n`` is no whole number of at least 0.
    """

    n: int
    max_length: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_integer("Fixed", "n", self.n, low=0)
        object.__setattr__(self, "max_length", self.n)

    def stop(self, step: DraftStep) -> Tensor:
        return never(step)
