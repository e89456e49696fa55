"""The report's three plots, as PNG bytes. Colours are Okabe and Ito's, and every policy has a marker too."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from svip_adapters.errors import PolicyError

from .extras import import_extra
from .metrics import OVERALL
from .plot_data import BOUND_SCALE, entropy_bins, rounds_by_draft_length
from .policy_list import rule_of
from .verdict import FEW_PROMPTS, has_interval, is_svip

__all__ = [
    "acceptance_by_entropy",
    "draft_length",
    "entropy_bins",
    "rounds_by_draft_length",
    "speedup_by_task",
]

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY, INK = "#767676", "#222222"
WIDTH = 6.4
FEW_ROUNDS = 5
Records = Mapping[str, Sequence[Mapping[str, Any]]]


def speedup_by_task(summary: Mapping[str, Any]) -> bytes:
    """Speed-up over the baseline, one row a task, with 95% intervals; 1 is the baseline."""
    cells, baseline = summary["cells"], summary["baseline"]
    names = [p for p in _policies(cells) if p != baseline]
    tasks = [OVERALL, *dict.fromkeys(c["task"] for c in cells if c["task"] != OVERALL)]
    looks = _looks(names)
    figure = _figure(1.5 + len(tasks) * (0.2 + 0.13 * len(names)))
    axes = figure.subplots()
    for cell in cells:
        if cell["policy"] not in looks:
            continue
        y = tasks.index(cell["task"]) + (names.index(cell["policy"]) + 0.5) / len(names) * 0.8 - 0.4
        ratio, look = cell["speedup"], looks[cell["policy"]]
        if has_interval(cell):
            width = 2.2 if cell["prompts"] >= FEW_PROMPTS else 0.8
            axes.plot([ratio["low"], ratio["high"]], [y, y], color=look["color"], lw=width)
        axes.plot(ratio["value"], y, **look, linestyle="", markersize=6)
    for row in range(1, len(tasks)):
        axes.axhline(row - 0.5, color="#dddddd", lw=0.8 if row > 1 else 2)
    axes.axvline(1, color=INK, lw=1.5)
    axes.set_yticks(range(len(tasks)), [_plain_text(task) for task in tasks])
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    axes.set_xlabel(f"times the speed of {_plain_text(baseline)} (line at 1); right is faster")
    _legend(figure, looks)
    return _png(figure)


def draft_length(summary: Mapping[str, Any], answers: Records) -> bytes | None:
    """Tokens drafted a round, split in accepted and wasted; below, accepted against drafted by length."""
    cells = [c for c in summary["cells"] if c["task"] == OVERALL and c["rounds"] and c["drafted"]]
    if not cells:
        return None
    figure = _figure(4.6 + 0.42 * len(cells))
    bars, curves = figure.subplots(2, height_ratios=[0.42 * len(cells) + 0.3, 3.8])
    _draw_bars(bars, cells)
    _draw_curves(curves, [cell["policy"] for cell in cells], answers)
    return _png(figure)


def _draw_bars(axes: Any, cells: Sequence[Mapping[str, Any]]) -> None:
    kept = [cell["accepted"] / cell["rounds"] for cell in cells]
    sent = [cell["drafted"] / cell["rounds"] for cell in cells]
    rows, wasted = range(len(cells)), [s - k for s, k in zip(sent, kept, strict=True)]
    axes.barh(rows, kept, color="#0072B2", label="accepted")
    axes.barh(
        rows, wasted, left=kept, color="#f2d6c2", edgecolor="#D55E00", hatch="///", lw=0.5, label="wasted"
    )
    for row in rows:
        axes.text(sent[row], row, f" {kept[row]:.1f} of {sent[row]:.1f}", va="center", fontsize=10)
    axes.set_yticks(rows, [_plain_text(cell["policy"]) for cell in cells])
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("tokens drafted in a round, mean")
    axes.legend(loc="best", frameon=False, fontsize=10)


def _draw_curves(axes: Any, policies: Sequence[str], answers: Records) -> None:
    longest = 1
    for policy, look in _looks(policies).items():
        points = [p for p in rounds_by_draft_length(answers.get(policy, ())) if p[2] >= FEW_ROUNDS]
        lengths, accepted = [p[0] for p in points], [p[1] for p in points]
        longest = max([longest, *lengths])
        sizes = [10 + 120 * p[2] / sum(q[2] for q in points) for p in points]
        top = 3 if is_svip(policy) else 2
        axes.plot(lengths, accepted, color=look["color"], lw=1, alpha=0.6, zorder=top)
        axes.scatter(lengths, accepted, s=sizes, **look, zorder=top, label=_plain_text(policy))
    axes.plot([0, longest], [0, longest], color=INK, lw=1, ls="--", label="all accepted")
    axes.locator_params(integer=True)
    axes.set_xlabel(f"tokens drafted in a round (lengths of {FEW_ROUNDS} rounds or more)")
    axes.set_ylabel("accepted, mean")
    axes.legend(loc="upper left", frameon=False, fontsize=10)


def acceptance_by_entropy(policies: Sequence[str], plain: Sequence[Mapping[str, Any]]) -> bytes | None:
    """How often the draft's top choice is the target's token, by the draft's entropy, and SVIP's bound.

    Args:
        policies: of the run; the entropy at which each SVIP policy stops is marked.
        plain: plain's answers; None is returned where they hold no ``probe``.
    """
    bins = entropy_bins(plain)
    if not bins:
        return None
    figure = _figure(5.0)
    top, below = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    x = [b["entropy"] for b in bins]
    rate = [b["rate"] for b in bins]
    errors = [[b["rate"] - b["low"] for b in bins], [b["high"] - b["rate"] for b in bins]]
    top.errorbar(x, rate, yerr=errors, color="#0072B2", marker="o", lw=1.5, capsize=3, label="measured, 95%")
    grid = np.linspace(0, max(b["right"] for b in bins), 400)
    bound = np.clip(1 - np.sqrt(BOUND_SCALE * grid), 0, 1)
    top.plot(grid, bound, color="#D55E00", ls="--", label=f"SVIP's bound, 1 - sqrt({BOUND_SCALE} H)")
    for entropy in _stops(policies):
        top.axvline(entropy, color=GREY, lw=1.2, ls=":", label=f"SVIP stops above H = {entropy:.2g}")
        below.axvline(entropy, color=GREY, lw=1.2, ls=":")
    top.set_ylim(0, 1.03)
    top.set_ylabel("accepted, share")
    top.legend(loc="upper right", frameon=False, fontsize=10)
    shares = [b["count"] / sum(b["count"] for b in bins) for b in bins]
    widths = [b["right"] - b["left"] for b in bins]
    below.bar([b["left"] for b in bins], shares, widths, align="edge", color="#bbbbbb", edgecolor="white")
    below.set_ylabel("tokens,\nshare")
    below.set_xlabel("draft's entropy H in nats (axis even in the square root)")
    below.set_xscale("function", functions=(lambda h: np.sqrt(np.maximum(h, 0)), np.square))
    below.set_xlim(0, grid[-1])
    below.set_xticks([h for h in (0, 0.1, 0.3, 0.6, 1, 2, 3, 5, 7, 10) if h <= grid[-1]], minor=False)
    below.xaxis.set_major_formatter("{x:g}")
    return _png(figure)


def _policies(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(cell["policy"] for cell in cells))


def _looks(policies: Sequence[str]) -> dict[str, dict[str, str]]:
    """Colour and marker of each policy: SVIP's first, plain in grey, so that plots of a run agree."""
    order = sorted((p for p in policies if p not in ("plain", "host")), key=lambda p: not is_svip(p))
    fixed = {"plain": {"color": GREY, "marker": "|"}, "host": {"color": INK, "marker": "x"}}
    looks = {p: {"color": COLORS[i % 7], "marker": MARKERS[i % 7]} for i, p in enumerate(order)}
    return {p: (fixed | looks)[p] for p in policies}


def _stops(policies: Sequence[str]) -> list[float]:
    """Entropies at which the SVIP policies of a run stop: sqrt(scale * H) = threshold."""
    from svip_adapters.policies import parse_policy

    found = set()
    for policy in filter(is_svip, policies):
        with contextlib.suppress(PolicyError):
            rule: Any = parse_policy(rule_of(policy))
            found.add(rule.threshold**2 / rule.scale)
    return sorted(found)


def _plain_text(text: str) -> str:
    """Matplotlib takes what stands between two dollar signs for a formula."""
    return text.replace("$", r"\$")


def _figure(height: float) -> Any:
    return import_extra("matplotlib.figure").Figure(figsize=(WIDTH, height), dpi=150, layout="constrained")


def _legend(figure: Any, looks: Mapping[str, Mapping[str, str]]) -> None:
    line = import_extra("matplotlib.lines").Line2D
    handles = [
        line([], [], linestyle="", **look, markersize=7, label=_plain_text(p)) for p, look in looks.items()
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False, fontsize=10)


def _png(figure: Any) -> bytes:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=10)
        axes.set_axisbelow(True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
