"""How likely a drafted token is accepted, learnt from what the target accepts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from svip_adapters.policy import DraftStep

__all__ = ["Acceptance", "features"]

_ODDS, _CLIP = 4.0, 2.0  # log-odds by their usual size, and where a draft's confidence says nothing more
_VARIANCE = 0.25  # of a prior weight
_DRIFT = 1e-4  # variance that a token adds


def features(step: DraftStep, recent: float) -> Tensor:
    """(N, 4) what a draft distribution says: 1, sqrt(H), the log-odds of its top token, recent acceptance.

    sqrt(H) is what SVIP's bound is linear in.
    """
    import torch

    p = step.top1_prob
    odds = (p / (1 - p)).log().div(_ODDS).nan_to_num(nan=-_CLIP).clamp(-_CLIP, _CLIP)
    one = torch.ones_like(odds)
    return torch.stack((one, step.entropy.sqrt(), odds, recent * one), dim=-1)


class Acceptance:
    """Logistic regression on ``features``, monotone in entropy and confidence, updated outcome by outcome.

    Each update is the implicit step of a Kalman filter: the new log-odds s solve s = s0 + k (y - sigma(s)),
    k the variance of the old ones, so that no surprise can overshoot.

    Args:
        prior: weights to begin with.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        import numpy as np

        self._weights = np.array(prior, dtype=np.float64)
        self._covariance = np.eye(len(prior)) * _VARIANCE
        self._on_device: Tensor | None = None  # the weights, copied there once a round at most

    def of(self, inputs: Tensor) -> Tensor:
        """(N, 4) features -> (N,) probabilities; NaN where the features are garbage."""
        if self._on_device is None or self._on_device.device != inputs.device:
            self._on_device = inputs.new_tensor(self._weights.tolist())
        return (inputs @ self._on_device).sigmoid()

    def learn(self, inputs: Sequence[float], accepted: bool) -> None:
        """One token whose fate is known."""
        import numpy as np

        x = np.array(inputs)
        if not np.isfinite(x).all():
            return
        spread = self._covariance @ x
        size = float(x @ spread)
        score = _implicit(float(x @ self._weights), size, float(accepted))
        chance = _sigmoid(score)
        self._weights += spread * (accepted - chance)
        # More entropy never makes acceptance likelier, nor more confidence unlikelier.
        self._weights[1], self._weights[2] = min(self._weights[1], 0.0), max(self._weights[2], 0.0)
        self._covariance -= np.outer(spread, spread) / (1 / max(chance * (1 - chance), 1e-3) + size)
        # Weights may drift, so that the last few hundred tokens count most; never less sure than at first.
        self._covariance += _DRIFT * np.eye(len(x))
        self._on_device = None
        self._covariance *= min(1.0, _VARIANCE * len(x) / np.trace(self._covariance))


def _implicit(start: float, size: float, wanted: float) -> float:
    """The root s of s - start - size (wanted - sigmoid(s)), which rises with s: by bisection."""
    low, high = start - size, start + size
    for _ in range(30):
        middle = (low + high) / 2
        if middle - start - size * (wanted - _sigmoid(middle)) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-min(max(score, -30.0), 30.0)))
