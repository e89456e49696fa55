"""What SVIP's authors report on EAGLE-2, to stand beside a run of your own."""

from __future__ import annotations

from typing import Any

from .extras import import_extra

__all__ = ["print_paper"]

TASKS = ("MT-Bench", "HumanEval", "GSM8K", "Alpaca", "CNN/DM", "QA", "average")
# Zhang et al., arXiv 2411.18462v1, Table 4: speed-up over the target alone.
TABLE_4 = {
    "LLaMA-2 7B": ("3.10 3.61 3.15 3.10 2.76 2.84 3.10", "3.16 3.66 3.18 3.13 2.82 3.02 3.16"),
    "LLaMA-2 13B": ("3.38 4.12 3.41 3.25 3.01 2.98 3.41", "3.41 4.09 3.45 3.34 3.05 3.17 3.46"),
    "Vicuna 7B": ("2.66 2.84 2.77 2.48 2.31 2.13 2.58", "2.84 2.97 2.75 2.66 2.42 2.30 2.73"),
    "Vicuna 13B": ("2.85 3.31 2.93 2.74 2.48 2.30 2.83", "2.94 3.49 3.19 2.89 2.60 2.53 2.98"),
}


def print_paper(console: Any = None) -> None:
    """Print the paper's table, marked as the paper's."""
    console = console or import_extra("rich.console").Console()
    table = import_extra("rich.table").Table(
        title="for comparison, NOT measured here: EAGLE-2 in the SVIP paper (arXiv 2411.18462v1, Table 4), "
        "speed-up over the target alone",
        box=import_extra("rich.box").SIMPLE_HEAD,
    )
    for name in ("paper's target", "paper's policy", *TASKS):
        table.add_column(name, justify="left" if name.startswith("paper") else "right")
    for target, rows in TABLE_4.items():
        for policy, row in zip(("EAGLE-2", "EAGLE-2 + SVIP"), rows, strict=True):
            table.add_row(target, policy, *row.split())
    console.print(table)
