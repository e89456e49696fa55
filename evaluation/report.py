"""A finished run as a table on the terminal and as one HTML page that needs no other file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import plots
from .errors import BenchError
from .extras import import_extra
from .page import page, table_rows
from .verdict import FASTER, SLOWER, judge

__all__ = ["print_table", "write"]

COLUMNS = {"speed-up": "speed-up", "95% interval": "95%", "against plain": "vs plain", "tokens/s": "tok/s"}
COUNTS = {name: name for name in ("tokens", "rounds", "drafted", "accepted")}


def write(out_dir: Path | str) -> Path:
    """Write ``report.html`` and the plots as PNG files into the folder of a run; return the page's path.

    Raises:
        BenchError: the folder has no readable summary or answers.
        HostVersionError: matplotlib is not installed.
    """
    out = Path(out_dir)
    summary = _load_json(out / "summary.json")
    answers = _load_answers(out / "answers")
    policies = list(dict.fromkeys(cell["policy"] for cell in summary["cells"]))
    images = {
        "speedup.png": plots.speedup_by_task(summary),
        "draft_length.png": plots.draft_length(summary, answers),
        "acceptance_by_entropy.png": plots.acceptance_by_entropy(policies, answers.get("plain", [])),
    }
    for name, image in images.items():
        if image is None:
            (out / name).unlink(missing_ok=True)  # one of an earlier run would be taken for this one's
        else:
            (out / name).write_bytes(image)
    run = _load_json(out / "run.json") if (out / "run.json").exists() else {}
    path = out / "report.html"
    path.write_text(page(summary, images, run), encoding="utf-8")
    return path


def print_table(summary: Mapping[str, Any], console: Any = None) -> None:
    """Print the verdict and every cell; a narrow terminal gets the columns of counts in the report only.

    Args:
        console: a ``rich.console.Console``; by default a new one on standard output.

    Raises:
        HostVersionError: rich is not installed.
    """
    console = console or import_extra("rich.console").Console()
    text = import_extra("rich.text").Text
    table = _table(summary, COLUMNS | COUNTS)
    if console.measure(table, options=console.options.update(width=1000)).maximum > console.width:
        table = _table(summary, COLUMNS)
    console.print(table)
    for verdict in judge(summary):
        console.print(text(verdict.headline, style="bold"))
        console.print(text(" ".join(verdict.details)))


def _table(summary: Mapping[str, Any], columns: Mapping[str, str]) -> Any:
    text = import_extra("rich.text").Text
    title = text(f"speed-up over {summary['baseline']}")
    table = import_extra("rich.table").Table(
        title=title, box=import_extra("rich.box").SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    table.add_column("policy", overflow="fold")
    names = {**columns, "identical": "same"}
    for header in names.values():
        table.add_column(header, justify="right", no_wrap=True)
    task = None
    for row in table_rows(summary):
        if row["task"] != task:
            task = row["task"]
            table.add_section()
            table.add_row(text(f"{task}: {row['prompts']} prompts", style="bold"))
        style = {FASTER: "blue", SLOWER: "yellow"}.get(row["result"], "")
        table.add_row(text(row["policy"]), *(text(row[name], style=style) for name in names))
    return table


def _load_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(
            f"expected the JSON that svip-bench writes in {path}, found: {error}; finish the run first, by "
            "repeating its command."
        ) from error
    if not isinstance(value, dict):
        raise BenchError(
            f"expected a JSON object in {path}, found a {type(value).__name__}; run svip-bench again."
        )
    return value


def _load_answers(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """{policy: records}. What follows the last newline of a file is torn, or nothing."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
            try:
                record = json.loads(line)
                found.setdefault(record["policy"], []).append(record)
            except (ValueError, KeyError, TypeError) as error:
                raise BenchError(
                    f"expected an answer of svip-bench in {path}, line {number}, found {error!r}; "
                    "delete that line and repeat the run's command."
                ) from error
    return found
