"""How likely a drafted token is accepted, learnt from what the target accepts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from svip_adapters.policy import DraftStep

__all__ = ["Acceptance", "features", "log_sigmoid"]

_CLIP = 8.0  # log-odds beyond which a draft's own confidence says nothing more
_TRUST = 0.5  # variance of a prior weight


def features(step: DraftStep, recent: float) -> Tensor:
    """(N, 4) what a draft distribution says: 1, sqrt(H), the log-odds of its top token, recent acceptance.

    sqrt(H) is what SVIP's bound is linear in.
    """
    import torch

    p = step.top1_prob
    odds = (p / (1 - p)).log().nan_to_num(nan=-_CLIP).clamp(-_CLIP, _CLIP)
    one = torch.ones_like(odds)
    return torch.stack((one, step.entropy.sqrt(), odds, recent * one), dim=-1)


def log_sigmoid(odds: float) -> float:
    """Log-probability of log-odds, kept from 0 and from minus infinity."""
    return -math.log1p(math.exp(-min(max(odds, -_CLIP), _CLIP)))


class Acceptance:
    """Logistic regression on ``features``, monotone in entropy and confidence, updated outcome by outcome.

    The update is that of an extended Kalman filter: one Newton step from where the last ones led, weighted
    by how sure they are.

    Args:
        prior: weights to begin with.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        import numpy as np

        self._weights = np.array(prior, dtype=np.float64)
        self._covariance = np.eye(len(prior)) * _TRUST

    @property
    def weights(self) -> list[float]:
        """Of the features; more entropy never makes acceptance likelier, nor more confidence unlikelier."""
        bias, entropy, confidence, recent = self._weights.tolist()
        return [bias, min(entropy, 0.0), max(confidence, 0.0), recent]

    def of(self, inputs: Tensor) -> Tensor:
        """(N, 4) features -> (N,) probabilities; NaN where the features are garbage."""
        return (inputs @ inputs.new_tensor(self.weights)).sigmoid()

    def score(self, inputs: Sequence[float]) -> float:
        """Log-odds of acceptance."""
        return sum(weight * value for weight, value in zip(self.weights, inputs, strict=True))

    def learn(self, inputs: Sequence[float], accepted: bool) -> None:
        """One token whose fate is known."""
        import numpy as np

        x = np.array(inputs)
        if not np.isfinite(x).all():
            return
        guess = 1 / (1 + math.exp(-float(np.clip(x @ self._weights, -30, 30))))
        spread = self._covariance @ x
        gain = spread / (1 / max(guess * (1 - guess), 1e-4) + x @ spread)
        self._covariance -= np.outer(gain, spread)
        self._weights += self._covariance @ x * (accepted - guess)
