"""The best setting of each rule on a trace, and what it is worth on prompts it was not chosen on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from svip_adapters.policy import LengthPolicy

from ..errors import BenchError
from .chain_replay import ChainReplay
from .classifier import KINDS, lengths_at
from .sampling import SampledReplay
from .table import Table

__all__ = ["Tuned", "tune"]

THRESHOLDS = [round(0.05 * n, 2) for n in range(1, 31)]
PROBABILITIES = [round(0.05 * n, 2) for n in range(1, 20)]
BARS = [round(0.04 * n, 2) for n in range(1, 25)]
FLOORS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)


@dataclass(frozen=True)
class Tuned:
    """One rule; ``classifier`` is none, but what could be reached (see there).

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
    recorded = table.trace.recorded
    if "depth" not in recorded.limits:
        # A threshold that stops nothing must not lead beyond what was recorded.
        end = f",max_length={recorded.length}" if recorded.length < LengthPolicy.max_length else ""
        return {
            "fixed": table.fixed,
            "svip": [f"svip:threshold={h}{end}" for h in THRESHOLDS],
            "confidence": [f"confidence:threshold={p}{end}" for p in PROBABILITIES],
            "cumulative": [f"cumulative:threshold={p}{end}" for p in PROBABILITIES],
            "adaedl": [f"adaedl:threshold={p}{end}" for p in PROBABILITIES],
        }
    least = recorded.floor
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
    texts, parts = table.tasks()["overall"], _folds(table, folds)
    plain, ceiling = table.seconds("plain", texts), table.seconds("oracle", texts)
    fixed = table.seconds(table.best(table.fixed, texts), texts)

    def tuned(rule: str, best: str, speedups: dict[str, float], seconds: float) -> Tuned:
        gap = fixed - ceiling
        return Tuned(rule, best, speedups, plain / seconds, (fixed - seconds) / gap if gap > 0 else None)

    found = []
    for rule, settings in _settings(table).items():
        seconds = {setting: [modelled for _, modelled in table.turns(setting)] for setting in settings}
        speedups = {setting: plain / sum(each) for setting, each in seconds.items()}
        found.append(tuned(rule, table.best(settings, texts), speedups, _held_out(seconds, parts)))
    if table.replay.chains is not None:  # trees are not planned by it
        classified = _held_out(_classified(table, table.replay.chains, parts), parts)
        found.append(tuned("classifier", "-", {"-": plain / classified}, classified))
    return found


def _classified(
    table: Table, chains: ChainReplay | SampledReplay, folds: Sequence[int]
) -> dict[Hashable, list[float]]:
    """{(kind of classifier, bar): seconds of each text under what it plans, fitted to the other folds}."""
    # Never to begin is a choice as well.
    found: dict[Hashable, list[float]] = {"plain": [modelled for _, modelled in table.turns("plain")]}
    for kind in KINDS:
        chances = chains.chances(folds, kind)
        for bar in BARS:
            done = chains.planned([lengths_at(known, bar) for known in chances])
            found[kind, bar] = table.modelled(done)
    return found


def _held_out(seconds: Mapping[Any, Sequence[float]], folds: Sequence[int]) -> float:
    """Seconds in all, where each fold's choice is the one that is best on the others.

    Args:
        seconds: {choice: of each text}. folds: of each text, its fold.
    """
    total = 0.0
    for fold in set(folds):
        rest = {
            choice: sum(s for s, other in zip(each, folds, strict=True) if other != fold)
            for choice, each in seconds.items()
        }
        best = min(rest, key=rest.__getitem__)
        total += sum(seconds[best]) - rest[best]
    return total


def _folds(table: Table, folds: int) -> list[int]:
    """Of each text, its fold; all turns of a prompt are in one."""
    questions = list(dict.fromkeys((text.task, text.question) for text in table.trace.texts))
    if min(folds, len(questions)) < 2:
        raise BenchError(
            f"expected at least 2 folds and 2 prompts to choose on some and score on others, found {folds} "
            f"folds and {len(questions)} prompt(s)."
        )
    of = {question: number % folds for number, question in enumerate(questions)}
    return [of[text.task, text.question] for text in table.trace.texts]
