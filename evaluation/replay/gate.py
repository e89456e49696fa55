"""What transformers does by default: a gate on the drawn token's probability, re-fitted as it goes."""

from __future__ import annotations

import numpy as np

from ..extras import import_extra
from .chains import Chains, too_short, verify
from .rounds import Replayed

__all__ = ["replay_gate"]

LENGTH, THRESHOLD = 20, 0.4
MISSED = 3  # cost of stopping before a token that would be accepted, against drafting one in vain
ENOUGH = 5


def replay_gate(chains: Chains, *, refit: bool) -> Replayed:
    """One turn of the unpatched host.

    Args:
        refit: whether scikit-learn was there: without it the host keeps the gate as it is.

    Source: ``AssistedCandidateGenerator`` of transformers 5.24 and 4.57.
    """
    text, done, at = chains.text, Replayed(), 0
    threshold, probabilities, matches = THRESHOLD, list[float](), list[int]()
    while at < len(text.ids):
        limit = max(0, min(LENGTH, text.limit - at - 1))
        if chains.ended[at]:
            limit = min(limit, chains.lengths[at])
        drawn = chains.scaled[at, :limit].exp().tolist()
        length = next((i + 1 for i, p in enumerate(drawn) if p < threshold), limit)
        if length > chains.lengths[at]:
            raise too_short(chains.lengths[at])
        done.draft[1] += length
        nodes, matched = verify(chains, at, length)
        gained = min(matched + 1, len(text.ids) - at)
        done.add(gained=gained, length=length, nodes=nodes, accepted=min(matched, gained))
        at += gained
        if not length:
            continue
        probabilities += drawn[:length]
        matches += [1] * matched
        if len(probabilities) > len(matches):
            matches.append(0)
        del probabilities[len(matches) :]
        if refit:
            threshold = _refitted(threshold, probabilities, matches)
    return done


def _refitted(threshold: float, probabilities: list[float], matches: list[int]) -> float:
    if len(probabilities) <= ENOUGH or len(set(matches)) < 2:
        return threshold
    false, true, thresholds = import_extra("sklearn.metrics").roc_curve(matches, probabilities)
    return float(thresholds[np.argmin(false + MISSED * (1 - true))])
