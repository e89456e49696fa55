"""SVIP: stop when the draft's own entropy says the next tokens will hardly be accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from svip_adapters.policies._arguments import require_flag, require_integer, require_number
from svip_adapters.policy import DraftStep, LengthPolicy

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SVIP"]


@dataclass(frozen=True)
class SVIP(LengthPolicy):
    """Stop once sqrt(scale * H) > threshold, H the draft's entropy in nats at temperature 1.

    Source: Zhang et al., "Draft Model Knows When to Stop" (arXiv 2411.18462). By Pinsker's inequality
    the acceptance probability is at least 1 - sqrt((H_qp - H) / 2), and with the ratio of cross-entropy
    to entropy taken as constant that is 1 - sqrt(c * H). The defaults are the authors' code
    (Geralt-Targaryen/SVIP 0cd912e, vanilla-sd/eval_specbench.py): scale 0.15, threshold 0.3, so a draft
    stops at H > 0.6, a lower bound on acceptance below 0.7; at most 40 tokens; the token drawn from the
    uncertain distribution is kept and verified. H is that of the raw logits under greedy decoding too.

    The paper and its code disagree; every reading can be written:

    ================================================  ========  ==============================================
    reading                                           stops at  written
    ================================================  ========  ==============================================
    code: sqrt(0.15 * H) > 0.3                        H > 0.60  ``SVIP()``
    text: sqrt(H) > h, constant absorbed into h       H > 0.09  ``SVIP(threshold=0.3, scale=1.0)``
    appendix: c = 0.18 goes with h = 0.3              H > 0.50  ``SVIP(threshold=0.3, scale=0.18)``
    code: the uncertain token is kept                 -         ``SVIP(stops_before=False)``
    Algorithm 1: it is not drawn (may draft nothing)  -         ``SVIP(stops_before=True)``
    ================================================  ========  ==============================================

    (Text, appendix and Algorithm 1 are those of the second version, known to us from a summary only.)

    Args:
        threshold: h, at least 0.
        scale: the factor inside the square root, above 0.
        max_length: most tokens (chain) or levels (tree) a round.
        stops_before: stop before the uncertain distribution is drawn from, not after.

    Raises:
        PolicyError: an argument out of range.
    """

    threshold: float = 0.3
    scale: float = 0.15
    max_length: int = 40
    stops_before: bool = False

    def __post_init__(self) -> None:
        require_number("SVIP", "threshold", self.threshold)
        require_number("SVIP", "scale", self.scale, positive=True)
        require_integer("SVIP", "max_length", self.max_length, low=1)
        require_flag("SVIP", "stops_before", self.stops_before)

    def stop(self, step: DraftStep) -> Tensor:
        # Squared on the host: one comparison on the device instead of a product, a root and a comparison.
        return step.entropy > self.threshold * self.threshold / self.scale
