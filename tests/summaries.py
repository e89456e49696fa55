"""Made-up summaries, for the tests of what is written about them."""

from __future__ import annotations

from typing import Any

SVIP = "svip:threshold=0.3"


def cell(task: str, policy: str, low: float, high: float, **changes: Any) -> dict[str, Any]:
    """A cell of 20 prompts whose speed-up has this interval, against the baseline and against plain."""
    ratio = {"value": (low + high) / 2, "low": low, "high": high}
    counts = {
        "prompts": 20,
        "tokens": 1000,
        "seconds": 50.0,
        "rounds": 400,
        "drafted": 1200,
        "accepted": 600,
        "draft_steps": 1200,
        "target_forwards": 410,
        "nodes_verified": 1200,
        "identical": 20,
    }
    return {"task": task, "policy": policy, **counts, "speedup": ratio, "speedup_vs_plain": ratio, **changes}


def make_summary(*cells: dict[str, Any], **changes: Any) -> dict[str, Any]:
    fixed = {
        "schema": 1,
        "host": "transformers",
        "target": "T",
        "draft": "D",
        "dtype": "float32",
        "device": "cpu",
        "versions": {"torch": "2.13.0"},
        "seed": 0,
        "temperature": 0.0,
        "baseline": "host",
    }
    return {**fixed, **changes, "cells": list(cells)}
