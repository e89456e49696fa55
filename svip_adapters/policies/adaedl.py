"""AdaEDL: an entropy rule whose threshold follows the acceptance rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svip_adapters.policies._arguments import require_flag, require_integer, require_number
from svip_adapters.policy import DraftStep, LengthPolicy, Outcome

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AdaEDL"]

_RATE_DECAY, _THRESHOLD_DECAY, _STEP = 0.5, 0.9, 0.01


@dataclass(eq=False)
class AdaEDL(LengthPolicy):
    """Stop once 1 - sqrt(gamma * H) < lambda, and move lambda after every round.

    With r the accepted share of the round's longest path and L the most tokens a round::

        rate    = 0.5 * rate + 0.5 * r
        wanted  = lambda + 0.01 if rate < target_rate, lambda - 0.01 elif accepted < L, else lambda
        lambda  = 0.9 * lambda + 0.1 * wanted

    Source: Agrawal et al., AdaEDL (arXiv 2410.18351), whose update follows Draft & Verify
    (arXiv 2309.08168). Checked: 0.5, 0.9, 0.9, 0.01 and the initial rate of 0 in the latter's code
    (dilab-zju/self-speculative-decoding, decoding.py, ``auto_parameters``); the same four and gamma = 0.2
    in two independent public ports of AdaEDL. The authors published no code and we could not read the
    paper itself: whether an uncertain token is still drawn is not settled (one port says it is not, which
    ``stops_before=True`` writes), nor is the initial lambda (the paper sweeps 0.3 to 0.9; 0.7 here is the
    bound that SVIP's constants imply). ``begin`` goes back to it, as Draft & Verify does.

    Args:
        threshold: the initial lambda, above 0, at most 1.
        gamma: factor inside the square root, above 0.
        target_rate: acceptance rate lambda is steered towards, 0..1.
        max_length: L.
        stops_before: stop before the uncertain distribution is drawn from, not after.

    Raises:
        PolicyError: an argument out of range.
    """

    stateless = False

    threshold: float = 0.7
    gamma: float = 0.2
    target_rate: float = 0.9
    max_length: int = 40
    stops_before: bool = False
    _lambda: float = field(init=False, repr=False)
    _rate: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_number("AdaEDL", "threshold", self.threshold, positive=True, high=1.0)
        require_number("AdaEDL", "gamma", self.gamma, positive=True)
        require_number("AdaEDL", "target_rate", self.target_rate, high=1.0)
        require_integer("AdaEDL", "max_length", self.max_length, low=1)
        require_flag("AdaEDL", "stops_before", self.stops_before)
        self.begin()

    def begin(self) -> None:
        self._lambda, self._rate = self.threshold, 0.0

    def stop(self, step: DraftStep) -> Tensor:
        # 1 - sqrt(gamma * H) < lambda, solved for H; a lambda above 1 stops everywhere, as it does there.
        slack = max(1.0 - self._lambda, 0.0)
        return step.entropy > slack * slack / self.gamma

    def verified(self, outcome: Outcome) -> None:
        if outcome.depth == 0:
            return
        self._rate = _RATE_DECAY * self._rate + (1 - _RATE_DECAY) * outcome.accepted / outcome.depth
        move = 0.0
        if self._rate < self.target_rate:
            move = _STEP
        elif outcome.accepted < self.max_length:
            move = -_STEP
        self._lambda += (1 - _THRESHOLD_DECAY) * move
