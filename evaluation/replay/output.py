"""Tables on the terminal, JSON files and a plot of what was replayed and tuned."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..extras import import_extra
from ..records import write_json
from .costs import CostModel
from .table import COUNTS
from .trace import Recorded
from .tune import Tuned

__all__ = ["plot_tuned", "print_cells", "print_tuned", "write_cells", "write_tuned"]

SCHEMA = 1


def write_cells(path: Path, recorded: Recorded, costs: CostModel, cells: Sequence[Mapping[str, Any]]) -> None:
    """Write replayed cells as JSON."""
    write_json(
        path, {"schema": SCHEMA, "host": recorded.host, "cost_model": asdict(costs), "cells": list(cells)}
    )


def write_tuned(path: Path, found: Sequence[Tuned]) -> None:
    """Write what was tuned as JSON."""
    write_json(path, {"schema": SCHEMA, "rules": [asdict(one) for one in found]})


def print_cells(recorded: Recorded, cells: Sequence[Mapping[str, Any]]) -> None:
    """Print one block a task; a narrow terminal gets the counts in the JSON file only."""
    console = import_extra("rich.console").Console()
    table = _cells(recorded, cells, COUNTS)
    if console.measure(table, options=console.options.update(width=1000)).maximum > console.width:
        table = _cells(recorded, cells, ())
    console.print(table)


def _cells(recorded: Recorded, cells: Sequence[Mapping[str, Any]], counts: Sequence[str]) -> Any:
    title = f"{recorded.host} ({recorded.draft}), modelled; speed-up over the target alone"
    table = _table(title, "policy", ("speed-up", "gap closed", *counts))
    draws = max((cell.get("draws") or 0 for cell in cells), default=0)
    if recorded.temperature:
        table.caption = (
            f"sampled at temperature {recorded.temperature}: means over what is accepted, over {draws} draws "
            "where there is a +- (their standard error), exact elsewhere"
        )
    text, task = import_extra("rich.text").Text, None
    for cell in cells:
        if cell["task"] != task:
            task = cell["task"]
            table.add_section()
            table.add_row(text(task, style="bold"))
        name = cell["policy"] + (f" ({cell['setting']})" if "setting" in cell else "")
        figures = [_speedup(cell), _share(cell["gap_closed"])]
        table.add_row(text(name), *figures, *(_count(cell[count]) for count in counts))
    return table


def _speedup(cell: Mapping[str, Any]) -> str:
    error = f"+-{cell['speedup_error']:.3f}" if cell.get("speedup_error") else ""
    return f"{cell['modelled_speedup']:.3f}{error}"


def _count(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def print_tuned(found: Sequence[Tuned]) -> None:
    """Print one row a rule."""
    table = _table(
        "modelled speed-up over the target alone", "rule", ("best setting", "there", "held out", "gap closed")
    )
    for one in found:
        figures = (f"{one.speedups[one.best]:.3f}", f"{one.held_out:.3f}", _share(one.gap_closed))
        table.add_row(one.rule, one.best, *figures)
    import_extra("rich.console").Console().print(table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(title: str, first: str, columns: Sequence[str]) -> Any:
    table = import_extra("rich.table").Table(
        title=title, box=import_extra("rich.box").SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def plot_tuned(found: Sequence[Tuned]) -> bytes:
    """Speed-up over the settings of each rule, in the order tried; a PNG file's bytes."""
    import_extra("matplotlib").use("agg")
    pyplot = import_extra("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for one in found:
        points = [(_threshold(setting), speed) for setting, speed in one.speedups.items()]
        known = [(x, speed) for x, speed in points if x is not None]
        if known:
            xs = sorted({x for x, _ in known})
            axes.plot(xs, [max(s for x, s in known if x == at) for at in xs], label=one.rule, marker=".")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("threshold (on a tree: the best min_probability at each)")
    axes.set_ylabel("modelled speed-up over the target alone")
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    return buffer.getvalue()


def _threshold(setting: str) -> float | None:
    _, found, rest = setting.partition("threshold=")
    return float(re.split("[,@]", rest)[0]) if found else None
