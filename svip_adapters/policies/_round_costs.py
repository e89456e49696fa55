"""What a round costs, measured as it goes by, or given."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["RoundCosts"]

_FORGET = 0.97  # of what earlier rounds say, a round
_FLAT = 0.03  # cost of one more verified token in shares of a round, until rounds of different sizes differ


class RoundCosts:
    """Running estimates of a draft step, of a round by the tokens it verifies, and of the time a token takes.

    Unless ``draft`` is given, all in seconds by the clock: a round lasts from one plan to the next, a draft
    step from one question to the next.

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
        self._sums = [0.0] * 5  # weight, n, n * n, seconds, n * seconds
        self._step_seconds = self._step_weight = 0.0
        self._seconds = {True: 0.0, False: 0.0}  # by whether the round drafted
        self._tokens = {True: 0.0, False: 0.0}
        self.rounds = {True: 0, False: 0}
        self.begin()

    def begin(self) -> None:
        """A sequence starts: its first round holds the prompt's forward and is not counted."""
        self._started = self._asked = -1.0
        self._open: tuple[int, int, int] | None = None
        self._first = True
        self._steps = 0

    def plan(self) -> tuple[float, int] | None:
        """A round begins, so the one before is over: its time and the tokens it gained, if it counts."""
        now, finished = self.clock(), None
        if self._open is not None and not self._first:
            finished = self._close(now - self._started)
        if self._open is not None:
            self._first = False
        self._started = self._asked = now
        self._open, self._steps = (0, 1, 0), 0
        return finished

    def asked(self) -> None:
        """A draft step is done."""
        now = self.clock()
        if self._steps or not self._first:
            weight = self._step_weight = _FORGET * self._step_weight + 1
            self._step_seconds += (now - self._asked - self._step_seconds) / weight
        self._steps += 1
        self._asked = now

    def verified(self, drafted: int, accepted: int, steps: int) -> None:
        """The round's fate."""
        self._open = drafted, accepted + 1, steps

    def _close(self, seconds: float) -> tuple[float, int]:
        drafted, gained, steps = self._open or (0, 1, 0)
        if self._given:
            seconds = 1 + self._given[0] * steps + self._given[1] * drafted
        rest = max(0.0, seconds - steps * self.step)
        new = (1.0, drafted, drafted * drafted, rest, drafted * rest)
        self._sums = [_FORGET * old + value for old, value in zip(self._sums, new, strict=True)]
        drew = drafted > 0
        keep = 0.9 if drew else 0.95
        self._seconds[drew] = keep * self._seconds[drew] + seconds
        self._tokens[drew] = keep * self._tokens[drew] + gained
        self.rounds[drew] += 1
        return seconds, gained

    @property
    def step(self) -> float:
        """A draft step."""
        return self._given[0] if self._given else self._step_seconds

    @property
    def token(self) -> float:
        """Verifying one token more: the slope over rounds, held towards a small share of a round."""
        if self._given:
            return self._given[1]
        weight, n, nn, y, ny = self._sums
        if not weight:
            return 0.0
        mean, prior = y / weight, _FLAT * y / weight
        spread = nn - n * n / weight
        slope = (ny - n * mean + 4 * prior) / (spread + 4)
        return max(0.0, min(slope, mean))

    def per_token(self, drafting: bool) -> float | None:
        """Time of a token in recent rounds that drafted, or did not; None before there were any."""
        return self._seconds[drafting] / self._tokens[drafting] if self._tokens[drafting] else None
