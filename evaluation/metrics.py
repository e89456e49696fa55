"""From answers to the summary's cells: pure functions, no files and no models.

A speed-up is a ratio of total tokens / total seconds. Its interval is a 95% percentile bootstrap over
prompts, paired: a resample holds the same prompts on both sides of the ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["OVERALL", "bootstrap_ratio", "cells", "identical"]

OVERALL = "overall"
RESAMPLES = 2000
Answers = Mapping[str, Mapping[int | str, Mapping[str, Any]]]
Floats = NDArray[np.float64]


def cells(answers: Answers, *, baseline: str, seed: int, greedy: bool) -> list[dict[str, Any]]:
    """One cell a task and policy; the tasks in order of appearance, then ``overall``.

    Args:
        answers: {policy: {question id: record}}; every policy has the same questions, and ``plain`` is one.
        baseline: policy that ``speedup`` is against.
        seed: of the bootstrap.
        greedy: False makes ``identical`` None: sampled answers need not be equal.
    """
    tasks: dict[str, list[int | str]] = {}
    for key, record in answers["plain"].items():
        tasks.setdefault(record["category"], []).append(key)
    tasks[OVERALL] = list(answers["plain"])
    found = []
    for task, keys in tasks.items():
        picks = np.random.default_rng(seed).integers(0, len(keys), (RESAMPLES, len(keys)))
        totals = {policy: _per_prompt(answers[policy], keys) for policy in answers}
        for policy in answers:
            cell = _counts([answers[policy][key] for key in keys])
            cell["identical"] = (
                sum(identical(answers[policy][k], answers["plain"][k]) for k in keys) if greedy else None
            )
            cell["speedup"] = bootstrap_ratio(totals[policy], totals[baseline], picks)
            cell["speedup_vs_plain"] = bootstrap_ratio(totals[policy], totals["plain"], picks)
            found.append({"task": task, "policy": policy, **cell})
    return found


def bootstrap_ratio(ours: Floats, base: Floats, picks: NDArray[np.int64]) -> dict[str, float]:
    """Ratio of tokens per second, with its interval.

    Args:
        ours, base: (2, P): tokens and seconds of each prompt.
        picks: (R, P) resampled prompt indices, the same for both.
    """

    def rate(tokens: Floats, seconds: Floats) -> Floats:
        return np.asarray(tokens.sum(-1) / seconds.sum(-1))

    value = rate(*ours) / rate(*base)
    drawn = rate(ours[0][picks], ours[1][picks]) / rate(base[0][picks], base[1][picks])
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"value": float(value), "low": float(low), "high": float(high)}


def identical(record: Mapping[str, Any], plain: Mapping[str, Any]) -> bool:
    """Whether all turns of an answer have the same ids as plain's."""
    return bool(record["ids"] == plain["ids"])


def _per_prompt(records: Mapping[int | str, Mapping[str, Any]], keys: list[int | str]) -> Floats:
    rows = [[sum(records[key]["new_tokens"]), sum(records[key]["wall_time"])] for key in keys]
    return np.array(rows, dtype=np.float64).T


def _counts(records: list[Mapping[str, Any]]) -> dict[str, Any]:
    def total(name: str) -> Any:
        return sum(sum(record[name]) for record in records)

    return {
        "prompts": len(records),
        "tokens": total("new_tokens"),
        "seconds": total("wall_time"),
        "rounds": sum(len(turn) for record in records for turn in record["accept_lengths"]),
        "drafted": sum(sum(turn) for record in records for turn in record["draft_lengths"]),
        "accepted": total("accepted"),
        "draft_steps": total("draft_steps"),
        "target_forwards": total("target_forwards"),
        "nodes_verified": total("nodes_verified"),
    }
