"""What a round costs, measured as rounds go by, or given."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["MeasuresTime", "RoundCosts"]

_FORGET = 0.98  # of what earlier rounds say, a round
_OUTLIER = 3.0  # a round that took so many times the usual was disturbed
_STEP, _TOKEN = 0.1, 0.03  # shares of a round, until rounds of different sizes differ
_TRUST = 1.0  # rounds that the shares above are worth
_SLOWLY = 0.995  # what is kept of what rounds cost, a round


class RoundCosts:
    """Running estimates of a draft step, of a verified token, and of the time a token takes.

    A round lasts from one plan to the next; its parts are told apart by ridge regression on draft steps and
    verified tokens. On a chain only their sum is told, which is all that a chain needs.

    Args:
        draft, verify: instead of measuring, what a draft step and a further verified token cost, in forwards
            of the target.
        clock: seconds; a replay has its own.
    """

    def __init__(
        self, draft: float | None, verify: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.clock = clock
        self._given = None if draft is None else (draft, verify)
        self._products = [[0.0] * 3 for _ in range(3)]
        self._times = [0.0] * 3
        self._parts: tuple[float, float] | None = None
        # By whether the round drafted: decayed seconds, tokens and number; all rounds so far.
        self._seconds = {True: 0.0, False: 0.0}
        self._tokens = {True: 0.0, False: 0.0}
        self._weight = {True: 0.0, False: 0.0}
        self.rounds = {True: 0, False: 0}
        self.begin()

    def begin(self) -> None:
        """A sequence starts: its first round holds the prompt's forward and is not counted."""
        self._started, self._first = -1.0, True
        self._open: tuple[int, int, int] | None = None

    def plan(self) -> tuple[float, int] | None:
        """A round begins, so the one before is over: its time and the tokens it gained, if it counts."""
        now, finished = self.clock(), None
        if self._open is not None:
            finished = None if self._first else self._close(now - self._started, *self._open)
            self._first = False
        self._started, self._open = now, (0, 1, 0)
        return finished

    def verified(self, drafted: int, accepted: int, steps: int) -> None:
        """The round's fate, told before the next plan; a round without it drafted nothing."""
        self._open = drafted, accepted + 1, steps

    def _close(self, seconds: float, drafted: int, gained: int, steps: int) -> tuple[float, int]:
        drew = drafted > 0
        if self._given is not None:
            seconds = 1 + self._given[0] * steps + self._given[1] * drafted
        elif usual := [self._seconds[kind] / w for kind, w in self._weight.items() if w]:
            seconds = min(seconds, _OUTLIER * max(usual))
        for kind in (True, False):  # both age: what is not tried for long is forgotten
            for sums in (self._seconds, self._tokens, self._weight):
                sums[kind] *= _FORGET
        self._seconds[drew] += seconds
        self._tokens[drew] += gained
        self._weight[drew] += 1
        self.rounds[drew] += 1
        row = (1.0, float(steps), float(drafted))
        for i, x in enumerate(row):
            self._times[i] = _SLOWLY * self._times[i] + x * seconds
            self._products[i] = [_SLOWLY * p + x * y for p, y in zip(self._products[i], row, strict=True)]
        self._parts = None
        return seconds, gained

    @property
    def parts(self) -> tuple[float, float]:
        """A draft step, and one more verified token."""
        if self._given is not None:
            return self._given
        if self._parts is None:
            self._parts = self._solve()
        return self._parts

    def _solve(self) -> tuple[float, float]:
        import numpy as np

        weight = self._products[0][0]
        if not weight:
            return 0.0, 0.0
        mean = self._times[0] / weight
        ridge = np.diag([0.0, _TRUST, _TRUST])
        prior = np.array([0.0, _STEP * mean, _TOKEN * mean])
        _, step, token = np.linalg.solve(np.array(self._products) + ridge, self._times + ridge @ prior)
        return min(max(float(step), 0.0), mean), min(max(float(token), 0.0), mean)

    def per_token(self, drafting: bool) -> float | None:
        """Time of a token in recent rounds that drafted, or did not; None before there were any."""
        return self._seconds[drafting] / self._tokens[drafting] if self.rounds[drafting] else None


class MeasuresTime:
    """What rules that measure time have in common: a clock that a replay can set."""

    _costs: RoundCosts

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds; wall time unless set."""
        return self._costs.clock

    @clock.setter
    def clock(self, clock: Callable[[], float]) -> None:
        self._costs.clock = clock
