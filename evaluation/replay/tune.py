"""The best setting of each rule on a trace, and what it is worth on prompts it was not chosen on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import BenchError
from .table import Table

__all__ = ["Tuned", "tune"]

THRESHOLDS = [round(0.05 * n, 2) for n in range(1, 31)]
PROBABILITIES = [round(0.05 * n, 2) for n in range(1, 20)]
FLOORS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)


@dataclass(frozen=True)
class Tuned:
    """One rule.

    Attributes:
        best: its best setting on all prompts.
        speedups: {setting: modelled speed-up over the target alone}.
        held_out: the speed-up where every prompt's setting is chosen on the other folds.
        gap_closed: the same as a share of the gap between best fixed and oracle; None where there is none.
    """

    rule: str
    best: str
    speedups: dict[str, float]
    held_out: float
    gap_closed: float | None


def _settings(table: Table) -> dict[str, list[str]]:
    if "depth" not in table.trace.recorded.limits:
        return {
            "fixed": table.fixed,
            "svip": [f"svip:threshold={h}" for h in THRESHOLDS],
            "confidence": [f"confidence:threshold={p}" for p in PROBABILITIES],
            "cumulative": [f"cumulative:threshold={p}" for p in PROBABILITIES],
            "adaedl": [f"adaedl:threshold={p}" for p in PROBABILITIES],
        }
    least = table.trace.recorded.floor
    floors = [least, *(floor for floor in FLOORS if floor > least)]
    return {
        "fixed": table.fixed,
        "svip": [f"svip:threshold={h}@min_probability={p}" for h in THRESHOLDS[3::4] for p in floors],
        "confidence": [
            f"confidence:threshold={c}@min_probability={p}" for c in PROBABILITIES[1::4] for p in floors
        ],
    }


def tune(table: Table, *, folds: int) -> list[Tuned]:
    """Replay every setting of every rule.

    Args:
        folds: parts that the prompts are split into; all turns of a prompt are in one.

    Raises:
        BenchError: fewer than two folds or prompts.
    """
    texts = table.tasks()["overall"]
    plain, ceiling = table.seconds("plain", texts), table.seconds("oracle", texts)
    fixed = table.seconds(table.best(table.fixed, texts), texts)
    found = []
    for rule, settings in _settings(table).items():
        seconds = sum(
            table.seconds(table.best(settings, others), fold) for fold, others in _split(table, folds)
        )
        found.append(
            Tuned(
                rule=rule,
                best=table.best(settings, texts),
                speedups={setting: plain / table.seconds(setting, texts) for setting in settings},
                held_out=plain / seconds,
                gap_closed=(fixed - seconds) / (fixed - ceiling) if fixed > ceiling else None,
            )
        )
    return found


def _split(table: Table, folds: int) -> Iterable[tuple[list[int], list[int]]]:
    """(numbers of one fold's texts, those of all others)."""
    questions = list(dict.fromkeys((text.task, text.question) for text in table.trace.texts))
    if min(folds, len(questions)) < 2:
        raise BenchError(
            f"expected at least 2 folds and 2 prompts to choose on some and score on others, found {folds} "
            f"folds and {len(questions)} prompt(s)."
        )
    of = {question: number % folds for number, question in enumerate(questions)}
    numbers = [of[text.task, text.question] for text in table.trace.texts]
    for fold in sorted(set(numbers)):
        inside = [i for i, number in enumerate(numbers) if number == fold]
        yield inside, [i for i, number in enumerate(numbers) if number != fold]
