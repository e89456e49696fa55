"""From the batches of a run to its cells and verdicts: pure functions, no files and no servers.

Throughput is output tokens / seconds, over all batches. A ratio has the same batches on both sides, and its
spread is a 95% percentile bootstrap over them, or, where there are too few, the least and the greatest ratio
of a single batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics import bootstrap_ratio

__all__ = ["REFERENCES", "cells", "headlines", "outcome"]

REFERENCES = ("none", "host")
RESAMPLES = 2000
FEW_BATCHES = 5
Record = Mapping[str, Any]
Cell = Mapping[str, Any]


def cells(answers: Mapping[str, Mapping[Any, Record]], *, seed: int = 0) -> list[dict[str, Any]]:
    """One cell a concurrency and policy, in the order of their first appearance.

    Args:
        answers: {policy: {batch: record}}; every policy has the same batches, and ``none`` is one.
        seed: of the bootstrap.

    Returns:
        Counts; ``throughput`` (tokens/s); ``first_token`` and ``per_token`` in seconds over all requests,
        each ``{"median", "p99"}``; ``identical`` requests, whose text is that of ``none``; ``vs_none`` and
        ``vs_host`` (None without ``host``), each ``{"value", "low", "high"}``; and what ``spread`` that is.
    """
    levels = list(dict.fromkeys(record["concurrency"] for record in answers["none"].values()))
    found = []
    for level in levels:
        keys = [key for key, record in answers["none"].items() if record["concurrency"] == level]
        totals = {policy: _totals([answers[policy][key] for key in keys]) for policy in answers}
        for policy in answers:
            records = [answers[policy][key] for key in keys]
            cell = {"concurrency": level, "policy": policy} | _counts(records)
            cell["identical"] = _identical(records, [answers["none"][key] for key in keys])
            for name in REFERENCES:
                known = name in totals
                cell[f"vs_{name}"] = _ratio(totals[policy], totals[name], seed) if known else None
            cell["spread"] = "95% bootstrap" if len(keys) >= FEW_BATCHES else "least and greatest"
            found.append(cell)
    return found


def _totals(records: Sequence[Record]) -> NDArray[np.float64]:
    """(2, B): tokens and seconds of each batch."""
    rows = [[sum(record["tokens"]), record["seconds"]] for record in records]
    return np.array(rows, dtype=np.float64).T


def _ratio(ours: NDArray[np.float64], base: NDArray[np.float64], seed: int) -> dict[str, float]:
    batches = ours.shape[1]
    picks = np.random.default_rng(seed).integers(0, batches, (RESAMPLES, batches))
    ratio = bootstrap_ratio(ours, base, picks)
    if batches < FEW_BATCHES:
        single = (ours[0] / ours[1]) / (base[0] / base[1])
        ratio |= {"low": float(single.min()), "high": float(single.max())}
    return ratio


def _counts(records: Sequence[Record]) -> dict[str, Any]:
    lengths = [n for record in records for n in record["tokens"]]
    first = [seconds for record in records for seconds in record["first_token"]]
    whole = [seconds for record in records for seconds in record["latency"]]
    rest = [(b - a) / (n - 1) for a, b, n in zip(first, whole, lengths, strict=True) if n > 1]
    seconds = sum(record["seconds"] for record in records)
    return {
        "batches": len(records),
        "requests": len(lengths),
        "tokens": sum(lengths),
        "seconds": seconds,
        "throughput": sum(lengths) / seconds,
        "first_token": _quantiles(first),
        "per_token": _quantiles(rest),
        **{name: sum(record[name] for record in records) for name in ("drafts", "drafted", "accepted")},
    }


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    """None without a value: answers of one token have no time between tokens."""
    if not values:
        return None
    return {"median": float(np.median(values)), "p99": float(np.quantile(values, 0.99))}


def _identical(records: Sequence[Record], plain: Sequence[Record]) -> int:
    """Requests answered with the same text."""
    ours, base = ([text for record in side for text in record["texts"]] for side in (records, plain))
    return sum(a == b for a, b in zip(ours, base, strict=True))


def outcome(cell: Cell, against: str) -> str:
    """``faster`` or ``slower`` where the spread, of enough batches, leaves 1 out, else ``not clear``."""
    ratio = cell[against]
    if cell["batches"] < FEW_BATCHES or ratio["low"] <= 1 <= ratio["high"]:
        return "not clear"
    return "faster" if ratio["low"] > 1 else "slower"


def headlines(found: Sequence[Cell]) -> list[str]:
    """One sentence a policy and reference: where it was faster, where slower."""
    policies = list(dict.fromkeys(cell["policy"] for cell in found))
    sentences = []
    for policy in policies:
        own = [cell for cell in found if cell["policy"] == policy]
        for name in REFERENCES:
            if policy == name or policy == "none" or own[0][f"vs_{name}"] is None:
                continue
            parts = [
                f"{outcome(cell, f'vs_{name}')} at {cell['concurrency']} ({cell[f'vs_{name}']['value']:.2f})"
                for cell in own
            ]
            sentences.append(f"{policy} against {name}: {', '.join(parts)}.")
    return sentences
