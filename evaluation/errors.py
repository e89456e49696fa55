"""What goes wrong in a benchmark run, in one sentence; the command line prints it and exits with 2."""

from __future__ import annotations

from svip_adapters.errors import SvipAdaptersError

__all__ = ["BenchError", "did_you_mean"]


class BenchError(SvipAdaptersError, RuntimeError):
    """A run cannot start or go on. The message says what was expected, what was found and what to do."""


def did_you_mean(name: str, known: list[str]) -> str:
    """``" (did you mean 'x'?)"`` for a near miss among the known names, otherwise nothing."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
