"""Did it pay? The summary in sentences, losing said as plainly as winning. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .metrics import OVERALL
from .policy_list import rule_of

__all__ = ["FASTER", "SLOWER", "UNCLEAR", "Verdict", "interval", "judge", "outcome", "times"]

FASTER, SLOWER, UNCLEAR = "faster", "slower", "not clear"
FEW_PROMPTS = 5
Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """On one policy.

    Attributes:
        policy: its name.
        outcome: ``FASTER``, ``SLOWER`` or ``UNCLEAR``, against the baseline over all prompts.
        headline: one sentence.
        details: further sentences: against plain, task by task, drafts, equality.
    """

    policy: str
    outcome: str
    headline: str
    details: list[str]


def judge(summary: Mapping[str, Any]) -> list[Verdict]:
    """One verdict for each SVIP policy of a run, or for each policy where it has none.

    Args:
        summary: of schema 1, as ``svip-bench`` writes it.
    """
    cells: list[Cell] = summary["cells"]
    overall = [cell for cell in cells if cell["task"] == OVERALL]
    others = [cell for cell in overall if cell["policy"] not in ("plain", summary["baseline"])]
    chosen = [cell for cell in overall if is_svip(cell["policy"])] or others
    return [
        Verdict(
            cell["policy"],
            outcome(cell, "speedup"),
            _headline(cell, summary["baseline"]),
            [
                *_details(cell, [c for c in cells if c["policy"] == cell["policy"]], summary),
                *_rank(cell, overall),
            ],
        )
        for cell in chosen
    ]


def is_svip(policy: str) -> bool:
    """Whether a policy's name is SVIP's, with any arguments."""
    return rule_of(policy).split(":")[0] == "svip"


def outcome(cell: Cell, against: str) -> str:
    """``FASTER`` or ``SLOWER`` where the 95% interval leaves 1 out, else ``UNCLEAR``.

    Fewer than ``FEW_PROMPTS`` prompts are always unclear: a bootstrap over two or three of them gives an
    interval far too narrow.

    Args:
        against: ``speedup`` (the baseline) or ``speedup_vs_plain``.
    """
    ratio = cell[against]
    if cell["prompts"] < FEW_PROMPTS:
        return UNCLEAR
    return FASTER if ratio["low"] > 1 else SLOWER if ratio["high"] < 1 else UNCLEAR


def has_interval(cell: Cell) -> bool:
    """Whether there was more than one prompt to resample."""
    return int(cell["prompts"]) > 1


def times(ratio: Mapping[str, float]) -> str:
    """``1.14x``."""
    return f"{ratio['value']:.2f}x"


def interval(cell: Cell, against: str) -> str:
    """``1.08-1.20``, or ``-`` where a single prompt gives none."""
    ratio = cell[against]
    return f"{ratio['low']:.2f}-{ratio['high']:.2f}" if has_interval(cell) else "-"


def _measured(cell: Cell, against: str, name: str) -> str:
    """``1.14x the speed of host (95% interval 1.08-1.20, 16 prompts)``."""
    prompts = "1 prompt" if cell["prompts"] == 1 else f"{cell['prompts']} prompts"
    spread = f"95% interval {interval(cell, against)}, " if has_interval(cell) else ""
    return f"{times(cell[against])} the speed of {name} ({spread}{prompts})"


def _headline(cell: Cell, baseline: str) -> str:
    policy, name = cell["policy"], "SVIP" if is_svip(cell["policy"]) else cell["policy"]
    if policy == baseline:
        return (
            f"{policy} is the baseline itself: this run does not say whether it paid against another policy."
        )
    measured = f"{policy} ran at {_measured(cell, 'speedup', baseline)}."
    if cell["prompts"] < FEW_PROMPTS:
        return f"Not clear whether {name} paid: too few prompts to tell. {measured}"
    return {
        FASTER: f"{name} paid: {measured}",
        SLOWER: f"{name} did not pay, it was slower: {measured}",
        UNCLEAR: f"Not clear whether {name} paid: the interval spans 1. {measured}",
    }[outcome(cell, "speedup")]


def _details(cell: Cell, own: list[Cell], summary: Mapping[str, Any]) -> list[str]:
    sentences = [_against_plain(cell)]
    tasks = [c for c in own if c["task"] != OVERALL]
    if len(tasks) > 1 and cell["policy"] != summary["baseline"]:
        sentences.append(_by_task(tasks, summary["baseline"]))
    if cell["rounds"]:
        sentences.append(
            f"It drafted {cell['drafted'] / cell['rounds']:.1f} tokens a round, of which the target accepted "
            f"{cell['accepted'] / cell['rounds']:.1f} ({share(cell)})."
        )
    return [*sentences, _equality(cell, summary)]


def share(cell: Cell) -> str:
    """Accepted tokens as a share of drafted ones, ``71%``; ``-`` where nothing was drafted."""
    return f"{cell['accepted'] / cell['drafted']:.0%}" if cell["drafted"] else "-"


def _against_plain(cell: Cell) -> str:
    found = {FASTER: "faster", SLOWER: "slower, so not drafting at all was better"}
    result = found.get(outcome(cell, "speedup_vs_plain"), "not clear")
    return f"Against the target alone it was {result}: {_measured(cell, 'speedup_vs_plain', 'plain')}."


def _by_task(tasks: list[Cell], baseline: str) -> str:
    """Which tasks won and lost, and the range where no task can be told."""
    named = {what: [c["task"] for c in tasks if outcome(c, "speedup") == what] for what in (FASTER, SLOWER)}
    told = sum(len(names) for names in named.values())
    parts = [f"{what} in {len(names)} ({', '.join(names)})" for what, names in named.items() if names]
    if told < len(tasks):
        few = sum(cell["prompts"] < FEW_PROMPTS for cell in tasks)
        why = f" ({few} with fewer than {FEW_PROMPTS} prompts, too few to tell)" if few else ""
        parts.append(f"not clear in {len(tasks) - told}{why}")
    best, worst = (pick(tasks, key=lambda c: c["speedup"]["value"]) for pick in (max, min))
    return (
        f"Task by task against {baseline}, of {len(tasks)}: {'; '.join(parts)}. Best is {best['task']} at "
        f"{times(best['speedup'])}, worst {worst['task']} at {times(worst['speedup'])}."
    )


def _equality(cell: Cell, summary: Mapping[str, Any]) -> str:
    same, prompts = cell["identical"], cell["prompts"]
    if same is None:
        return f"Sampled at temperature {summary['temperature']:g}: answers are not compared one by one."
    sentence = f"Its answers were identical to plain's on {same} of {prompts} prompts."
    if same < prompts:
        sentence += (
            " The field 'difference' in the answer files says where each of the others leaves plain's."
        )
    return sentence


def _rank(cell: Cell, overall: list[Cell]) -> list[str]:
    best = max(overall, key=lambda c: c["speedup"]["value"])
    if best["policy"] == cell["policy"]:
        return [f"It was the fastest of the {len(overall)} policies measured."]
    return [f"The fastest policy measured was {best['policy']}, at {times(best['speedup'])}."]
