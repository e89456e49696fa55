"""How far a run is: a bar on a terminal, a line now and then in a log file."""

from __future__ import annotations

import time
from types import TracebackType

from .extras import import_extra

__all__ = ["Progress"]


class Progress:
    """Context manager; ``advance`` after each answer turn.

    Args:
        total: turns to generate, over all policies.
        every: seconds between two lines where there is no terminal.
        what: the things that are counted, if not turns.
    """

    def __init__(self, total: int, *, every: float = 15.0, what: str = "turns") -> None:
        self._what = what
        self._total, self._done, self._every = total, 0, every
        self._start = self._printed = time.monotonic()
        rich = import_extra("rich.progress")
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[left]} left"),
        )
        self._task = self._bar.add_task("generating", total=total, left="?")

    def __enter__(self) -> Progress:
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop() if self._bar.console.is_terminal else None

    def advance(self, what: str) -> None:
        """One more is done.

        Args:
            what: the policy that wrote it.
        """
        self._done += 1
        now = time.monotonic()
        left = _clock((now - self._start) / self._done * (self._total - self._done))
        if self._bar.console.is_terminal:
            self._bar.update(self._task, advance=1, description=f"generating ({what})", left=left)
        elif now - self._printed >= self._every or self._done == self._total:
            self._printed = now
            print(f"{self._done}/{self._total} {self._what}, {left} left", flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
