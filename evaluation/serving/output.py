"""A serving run on the terminal, as Markdown and as a plot."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..extras import import_extra
from ..plots import COLORS, GREY, INK, MARKERS
from ..verdict import is_svip
from .cells import headlines

__all__ = ["plot", "print_table", "write"]

COLUMNS = (
    "tokens/s",
    "of none",
    "of host",
    "first token, ms",
    "p99",
    "a token, ms",
    "p99 ",
    "drafted",
    "accepted",
    "same",
)
NARROW = ("tokens/s", "of none", "of host", "same")
Cells = Sequence[Mapping[str, Any]]


def write(summary: Mapping[str, Any], out: Path) -> None:
    """Write ``report.md`` and ``throughput.png`` into the run's folder.

    Raises:
        HostVersionError: matplotlib is not installed.
    """
    (out / "report.md").write_text(_markdown(summary), encoding="utf-8")
    (out / "throughput.png").write_bytes(plot(summary["cells"]))


def print_table(summary: Mapping[str, Any]) -> None:
    """Print every cell and the verdicts; a narrow terminal gets fewer columns.

    Raises:
        HostVersionError: rich is not installed.
    """
    console = import_extra("rich.console").Console()
    table = _table(summary["cells"], COLUMNS)
    if console.measure(table, options=console.options.update(width=1000)).maximum > console.width:
        table = _table(summary["cells"], NARROW)
    console.print(table)
    for sentence in headlines(summary["cells"]):
        console.print(import_extra("rich.text").Text(sentence))


def _table(cells: Cells, columns: Sequence[str]) -> Any:
    text = import_extra("rich.text").Text
    table = import_extra("rich.table").Table(
        box=import_extra("rich.box").SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    table.add_column("policy", overflow="fold")
    for column in columns:
        table.add_column(column.strip(), justify="right", no_wrap=True)
    level = None
    for cell in cells:
        if cell["concurrency"] != level:
            level = cell["concurrency"]
            table.add_section()
            table.add_row(text(_title(cell), style="bold"))
        row = _row(cell)
        table.add_row(text(cell["policy"]), *(row[column] for column in columns))
    return table


def _title(cell: Mapping[str, Any]) -> str:
    clients = "1 client" if cell["concurrency"] == 1 else f"{cell['concurrency']} clients"
    return f"{clients}: {cell['requests']} requests in {cell['batches']} batches"


def _row(cell: Mapping[str, Any]) -> dict[str, str]:
    first, rest = cell["first_token"], cell["per_token"]
    values = (
        f"{cell['throughput']:.1f}",
        _ratio(cell["vs_none"]),
        _ratio(cell["vs_host"]),
        _milliseconds(first, "median"),
        _milliseconds(first, "p99"),
        _milliseconds(rest, "median"),
        _milliseconds(rest, "p99"),
        str(cell["drafted"]),
        str(cell["accepted"]),
        f"{cell['identical']} of {cell['requests']}",
    )
    return dict(zip(COLUMNS, values, strict=True))


def _ratio(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "-"
    if ratio["low"] == ratio["high"] == 1:
        return "1"
    return f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def _milliseconds(found: Mapping[str, float] | None, name: str) -> str:
    return "-" if found is None else f"{1000 * found[name]:.0f}"


def _markdown(summary: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    lines = [
        f"# {summary['engine']}: {summary['prompt_set']}, {summary['max_new_tokens']} new tokens\n",
        f"{versions}; {summary['dtype']} on {summary['device']}; at most {summary['drafted']} drafted.",
        "Ratios of throughput, in brackets their spread: a 95% bootstrap over batches, below five of them",
        "the least and the greatest. `first token` and `a token` (each after the first): median and 99th",
        "percentile.\n",
        "| clients | policy | " + " | ".join(column.strip() for column in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for cell in summary["cells"]:
        values = [str(cell["concurrency"]), f"`{cell['policy']}`", *_row(cell).values()]
        lines.append("| " + " | ".join(values) + " |")
    lines += ["", *(f"- {sentence}" for sentence in headlines(summary["cells"])), ""]
    lines += ["![throughput by clients](throughput.png)", ""]
    return "\n".join(lines)


def plot(cells: Cells) -> bytes:
    """Throughput, and its ratio to ``none``, by the number of clients; the bytes of a PNG file.

    Raises:
        HostVersionError: matplotlib is not installed.
    """
    figure = import_extra("matplotlib.figure").Figure(figsize=(6.4, 7.2), dpi=150, layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    levels = sorted({cell["concurrency"] for cell in cells})
    for policy, look in _looks(list(dict.fromkeys(cell["policy"] for cell in cells))).items():
        own = sorted((c for c in cells if c["policy"] == policy), key=lambda c: c["concurrency"])
        x = [cell["concurrency"] for cell in own]
        above.plot(x, [cell["throughput"] for cell in own], **look, lw=1.5, label=policy)
        ratios = [cell["vs_none"] for cell in own]
        below.plot(x, [ratio["value"] for ratio in ratios], **look, lw=1.5)
        below.vlines(x, [r["low"] for r in ratios], [r["high"] for r in ratios], color=look["color"], lw=1)
    above.set_ylim(bottom=0)
    above.set_ylabel("output tokens a second")
    below.set_ylabel("times the throughput of none")
    below.set_xscale("log", base=2)
    below.set_xticks(levels, [str(level) for level in levels])
    below.minorticks_off()
    below.set_xlabel("clients that ask at once")
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=10)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _looks(policies: Sequence[str]) -> dict[str, dict[str, str]]:
    """Colour and marker of each policy: SVIP's first, as in the other plots."""
    order = sorted((p for p in policies if p not in ("none", "host")), key=lambda p: not is_svip(p))
    fixed = {"none": {"color": GREY, "marker": "|"}, "host": {"color": INK, "marker": "x"}}
    looks = {p: {"color": COLORS[i % 7], "marker": MARKERS[i % 7]} for i, p in enumerate(order)}
    return {p: (fixed | looks)[p] for p in policies}
