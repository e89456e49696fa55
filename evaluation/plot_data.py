"""What the plots show, counted from the answers: pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["BOUND_SCALE", "entropy_bins", "rounds_by_draft_length"]

BOUND_SCALE = 0.15
EDGES = [(i / 10) ** 2 / BOUND_SCALE for i in range(14)]  # even in sqrt(0.15 H): nats 0, 0.07, 0.27, 0.6, ...


def entropy_bins(plain: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Acceptance in bins of entropy, with Wilson's 95% interval; bins that hold no token are left out."""
    pairs = [pair for record in plain for turn in record.get("probe") or () for pair in turn]
    if not pairs:
        return []
    entropy, agrees = np.array(pairs, dtype=np.float64).T
    place = np.clip(np.digitize(entropy, EDGES) - 1, 0, len(EDGES) - 2)
    bins = []
    for i in np.unique(place):
        inside = place == i
        n, p, z = int(inside.sum()), float(agrees[inside].mean()), 1.96
        center = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        bins.append(
            {
                "left": float(EDGES[i]),
                "right": float(EDGES[i + 1]),
                "entropy": float(entropy[inside].mean()),
                "rate": p,
                # min and max with p: rounding must not put the rate outside its interval
                "low": max(0.0, min(p, float(center - half))),
                "high": min(1.0, max(p, float(center + half))),
                "count": n,
            }
        )
    return bins


def rounds_by_draft_length(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, float, int]]:
    """(tokens drafted in a round, mean of them accepted, rounds), by length; undrafted rounds left out."""
    accepted: dict[int, list[int]] = defaultdict(list)
    for record in records:
        turns = zip(record["accept_lengths"], record["draft_lengths"], record["accepted"], strict=True)
        for gained, drafted, total in turns:
            kept = [length - 1 for length in gained]
            if kept:
                # A last round may end on a drafted token, with none of the target's own after it.
                kept[-1] += total - sum(kept)
            for length, n in zip(drafted, kept, strict=True):
                accepted[length].append(n)
    accepted.pop(0, None)
    return [(length, sum(n) / len(n), len(n)) for length, n in sorted(accepted.items())]
