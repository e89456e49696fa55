"""The HTML page of a run: one file that needs no other. Pure functions; everything from files is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from .metrics import OVERALL
from .verdict import FEW_PROMPTS, Verdict, interval, judge, outcome, share, times

__all__ = ["page", "table_rows"]

TEMPLATE = Path(__file__).with_name("report_template.html")
SUMMARY_COLUMNS = (
    *("policy", "speed-up", "95% interval", "result", "against plain", "tokens/s", "drafted a round"),
    *("accepted a round", "accepted of drafted", "identical"),
)
COUNTS = (
    *("prompts", "tokens", "seconds", "rounds", "drafted", "accepted", "draft_steps", "target_forwards"),
    "nodes_verified",
)
CAPTIONS = {
    "speedup.png": (
        "Speed-up by task",
        "Each mark is one policy, its bar the 95% interval. Right of the line is faster than the baseline, "
        "left is slower; a bar across the line means that this run cannot tell, and "
        f"a thin bar that it rests on fewer than {FEW_PROMPTS} prompts, too few to tell.",
    ),
    "draft_length.png": (
        "Draft length against accepted length",
        "Above: what an average round drafts, and how much of that the target accepts. Below: the same by "
        "the length of the draft. A good rule drafts long where much is accepted and short elsewhere: its "
        "marks stay near the dashed line. Larger marks stand for more of its rounds.",
    ),
    "acceptance_by_entropy.png": (
        "Acceptance by entropy",
        "SVIP stops drafting when the draft's entropy is high, which can pay only if acceptance falls as "
        "entropy rises. Measured over plain's answers for the draft's likeliest token; dashed is the lower "
        "bound that SVIP estimates, dotted the entropy above which it stops.",
    ),
}


def page(summary: Mapping[str, Any], images: Mapping[str, bytes | None], run: Mapping[str, Any]) -> str:
    """The HTML page; everything that comes from files is escaped.

    Args:
        summary: of schema 1.
        images: PNG bytes by the names in ``CAPTIONS``; None where a run has no data for one.
        run: further settings to show, as in run.json.
    """
    subtitle = (
        f"Target {summary['target']}, draft {summary['draft']}, host {summary['host']}, {summary['dtype']} "
        f"on {summary['device']}, temperature {summary['temperature']:g}. Baseline: {summary['baseline']}."
    )
    overall = [row for row in table_rows(summary) if row["task"] == OVERALL]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title="Did the draft length rule pay?",
        subtitle=escape(subtitle),
        verdicts="\n".join(_verdict(verdict) for verdict in judge(summary))
        or '<div class="verdict"><p>This run has no policy to compare with its baseline.</p></div>',
        few=str(FEW_PROMPTS),
        overall=_table(overall, SUMMARY_COLUMNS),
        figures="\n".join(_figure(name, image) for name, image in images.items()),
        cells=_table(table_rows(summary), ("task", *SUMMARY_COLUMNS, *COUNTS)),
        configuration="".join(_settings({**run, **{k: v for k, v in summary.items() if k != "cells"}})),
    )


def table_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Every cell as text, ``overall`` first, no cell left out."""
    cells = sorted(summary["cells"], key=lambda cell: cell["task"] != OVERALL)
    return [_row(cell, summary["baseline"]) for cell in cells]


def _row(cell: Mapping[str, Any], baseline: str) -> dict[str, str]:
    rounds = max(1, cell["rounds"])
    is_baseline = cell["policy"] == baseline
    return {
        "task": cell["task"],
        "policy": cell["policy"],
        "speed-up": times(cell["speedup"]),
        "95% interval": "-" if is_baseline else interval(cell, "speedup"),
        "result": "baseline" if is_baseline else outcome(cell, "speedup"),
        "against plain": times(cell["speedup_vs_plain"]),
        "tokens/s": f"{cell['tokens'] / cell['seconds']:.1f}" if cell["seconds"] else "-",
        "drafted a round": f"{cell['drafted'] / rounds:.2f}",
        "accepted a round": f"{cell['accepted'] / rounds:.2f}",
        "accepted of drafted": share(cell),
        "identical": "-" if cell["identical"] is None else f"{cell['identical']}/{cell['prompts']}",
        **{name: f"{cell[name]:.1f}" if name == "seconds" else str(cell[name]) for name in COUNTS},
    }


def _verdict(verdict: Verdict) -> str:
    details = "".join(f"<li>{escape(sentence)}</li>" for sentence in verdict.details)
    kind = verdict.outcome.replace(" ", "-")
    return f'<div class="verdict {kind}"><p>{escape(verdict.headline)}</p><ul>{details}</ul></div>'


def _table(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> str:
    heads = "".join(
        f'<th scope="col"{_class(name)}>{escape(name.replace("_", " "))}</th>' for name in columns
    )
    body, task = [], rows[0]["task"] if rows else None
    for row in rows:
        mark = ' class="first"' if row["task"] != task else ""
        task = row["task"]
        entries = "".join(
            f"<td{_class(name, row['result'])}>{escape(row[name])}</td>" for name in columns[1:]
        )
        body.append(f'<tr{mark}><th scope="row">{escape(row[columns[0]])}</th>{entries}</tr>')
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _class(column: str, result: str = "") -> str:
    if column in ("task", "policy", "result"):
        return f' class="text {result if column == "result" else ""}"'
    return f' class="{result}"' if column == "speed-up" and result in ("faster", "slower") else ""


def _figure(name: str, image: bytes | None) -> str:
    title, caption = CAPTIONS[name]
    if image is None:
        return f'<h2>{title}</h2><p class="note">This run\'s answers hold no data for this plot.</p>'
    source = base64.b64encode(image).decode()
    return (
        f'<h2>{title}</h2><figure><figcaption>{caption}</figcaption><img alt="{title}: see the table below '
        f'for the figures" src="data:image/png;base64,{source}"></figure>'
    )


def _settings(values: Mapping[str, Any]) -> Iterable[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {item}" for name, item in value.items())
        elif isinstance(value, list):
            value = ", ".join(str(item) for item in value)
        yield f"<dt>{escape(str(key).replace('_', ' '))}</dt><dd>{escape(str(value))}</dd>"
