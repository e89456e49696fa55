"""Every rule on every task of a trace, and how much of what is possible it reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev
from typing import Any

from ..metrics import OVERALL
from .costs import CostModel
from .replaying import Replaying
from .rounds import Expected, Turn
from .sampling import DRAWS
from .trace import Trace

__all__ = ["COUNTS", "Table"]

COUNTS = ("tokens", "rounds", "drafted", "accepted", "draft_steps", "nodes_verified")


class Table:
    """Replays and their modelled times, each policy replayed once.

    Args:
        trace: recorded.
        costs: of the machine, or of a ratio.
        draws: see ``SampledReplay``.
    """

    def __init__(self, trace: Trace, costs: CostModel, draws: int = DRAWS) -> None:
        self.trace, self._costs = trace, costs
        self.replay = Replaying(trace, costs, draws)
        self._known: dict[str, list[tuple[Turn, float]]] = {}
        self.fixed = ["plain", *self.replay.fixed()]

    def tasks(self) -> dict[str, list[int]]:
        """{task: numbers of its texts}, and all texts."""
        found: dict[str, list[int]] = {task: [] for task in self.trace.tasks}
        for number, text in enumerate(self.trace.texts):
            found[text.task].append(number)
        return found | {OVERALL: list(range(len(self.trace.texts)))}

    def turns(self, policy: str) -> list[tuple[Turn, float]]:
        """What a policy does on each text, and its modelled seconds."""
        if policy not in self._known:
            done = self.replay.oracle(self._costs) if policy == "oracle" else self.replay(policy)
            seconds = self._plain() if policy == "plain" else self.modelled(done)
            timed = list(zip(done, seconds, strict=True))
            if policy == "oracle":  # it knows as well where not to begin: in which texts, not draws of them
                timed = [
                    min(both, key=lambda turn: turn[1])
                    for both in zip(timed, self.turns("plain"), strict=True)
                ]
            self._known[policy] = timed
        return self._known[policy]

    def _plain(self) -> list[float]:
        texts = self.trace.texts
        return [self._costs.plain(text.prompt_length, len(text.ids)) for text in texts]

    def modelled(self, done: Sequence[Turn]) -> list[float]:
        """Seconds of each text's rounds."""
        return [
            self._costs.seconds(turn, text.prompt_length)
            for turn, text in zip(done, self.trace.texts, strict=True)
        ]

    def seconds(self, policy: str, texts: Sequence[int]) -> float:
        """Modelled seconds of a policy on some texts."""
        turns = self.turns(policy)
        return sum(turns[number][1] for number in texts)

    def best(self, policies: Sequence[str], texts: Sequence[int]) -> str:
        """The policy that takes the least modelled time on some texts."""
        return min(policies, key=lambda policy: self.seconds(policy, texts))

    def cells(self, policies: Sequence[str]) -> list[dict[str, Any]]:
        """One cell a task and policy, the references among them.

        ``gap_closed`` is the share of the time between the task's best fixed setting, in hindsight, and the
        oracle that a policy saves: 0 for the one, 1 for the other, None where there is none. On a sampled
        trace counts are means, ``draws`` how many were averaged (None: the mean is exact) and
        ``speedup_error`` the standard error of the modelled speed-up over them.
        """
        rows = []
        for task, texts in self.tasks().items():
            fixed = self.best(self.fixed, texts)
            plain, ceiling = self.seconds("plain", texts), self.seconds("oracle", texts)
            gap = self.seconds(fixed, texts) - ceiling
            names = {"plain": "plain", "best_fixed": fixed, "oracle": "oracle"}
            names |= {policy: policy for policy in policies}
            for name, policy in names.items():
                seconds = self.seconds(policy, texts)
                closed = (self.seconds(fixed, texts) - seconds) / gap if gap > 0 else None
                cell = {"task": task, "policy": name, **self._counts(policy, texts)}
                cell |= {"modelled_seconds": seconds, "modelled_speedup": plain / seconds}
                cell |= {"gap_closed": closed} | self._precision(policy, texts, plain / seconds**2)
                rows.append(cell | ({"setting": fixed} if name == "best_fixed" else {}))
        return rows

    def _counts(self, policy: str, texts: Sequence[int]) -> dict[str, float]:
        turns = [self.turns(policy)[number][0] for number in texts]
        return {count: sum(getattr(turn, count) for turn in turns) for count in COUNTS}

    def _precision(self, policy: str, texts: Sequence[int], slope: float) -> dict[str, Any]:
        """``slope``: of the speed-up, by seconds."""
        if not self.trace.recorded.temperature:
            return {}
        turns = ((self.turns(policy)[number][0], self.trace.texts[number].prompt_length) for number in texts)
        seconds = [
            [self._costs.seconds(draw, length) for draw in turn.draws]
            for turn, length in turns
            if isinstance(turn, Expected) and turn.draws
        ]
        totals = [sum(each) for each in zip(*seconds, strict=True)]
        error = slope * stdev(totals) / math.sqrt(len(totals)) if len(totals) > 1 else None
        return {"draws": len(totals) or None, "speedup_error": error if totals else 0.0}
