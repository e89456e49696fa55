"""Greedy answers that are not plain's: listed one by one, so that none hides behind a count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .extras import import_extra

__all__ = ["NEAR_TIE", "Difference", "differences", "show"]

NEAR_TIE = 1e-4


@dataclass(frozen=True)
class Difference:
    """Where an answer first leaves plain's.

    Attributes:
        policy, question: which answer. turn, position: where, from 0.
        gap, gap_plain: distance of the target's two top logits there, in this run's and in plain's forwards;
            None where the host cannot tell.
    """

    policy: str
    question: int | str
    turn: int
    position: int
    gap: float | None
    gap_plain: float | None

    @property
    def near_tie(self) -> bool:
        """Whether the two top logits were closer than ``NEAR_TIE`` in both runs."""
        return all(gap is not None and gap < NEAR_TIE for gap in (self.gap, self.gap_plain))


def differences(answers: Mapping[str, Mapping[int | str, Mapping[str, Any]]]) -> Iterator[Difference]:
    """All differences in the answers {policy: {question id: record}}; none in sampled ones."""
    for policy, records in answers.items():
        for question, record in records.items():
            if found := record.get("difference"):
                yield Difference(policy, question, **found)


def show(found: Iterator[Difference], *, dtype: str) -> bool:
    """Print them; in float32 each in red, as rounding explains only near-ties there.

    Returns:
        False when float32 outputs differ at a token that is not known to be a near-tie.
    """
    console = import_extra("rich.console").Console(highlight=False, soft_wrap=True)
    listed = list(found)
    for item in listed:
        unknown = None in (item.gap, item.gap_plain)
        kind = "perhaps a near-tie" if unknown else "a near-tie" if item.near_tie else "not a near-tie"
        console.print(
            f"differs from plain: {item.policy}, question {item.question}, turn {item.turn + 1}, "
            f"token {item.position + 1}; top two logits apart by {_gap(item.gap)}, "
            f"for plain {_gap(item.gap_plain)}: {kind}",
            style="bold red" if dtype == "float32" else None,
            markup=False,
        )
    if listed and dtype != "float32":
        console.print(
            f"({dtype} rounds differently for different numbers of rows; --dtype float32 tells more)"
        )
    return dtype != "float32" or all(item.near_tie for item in listed)


def _gap(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2g}"
