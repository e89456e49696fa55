"""Reversible attribute swaps on a host, and the counts a patch keeps while it is on."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import inspect
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from svip_adapters.errors import HostVersionError, PatchError, UnsupportedHostError
from svip_adapters.policy import LengthPolicy, Outcome

__all__ = [
    "Patch",
    "PatchStats",
    "fingerprint",
    "require_parameters",
    "require_unpatched",
    "require_version",
    "warn_if_changed",
]

_MARK = "_svip_patch"
_ABSENT: Any = object()


@dataclass
class PatchStats:
    """Exact counts since the patch was made, or since ``reset``.

    ``draft_steps`` are forwards of the draft, ``early_stops`` rounds that the policy ended before its
    plan did, ``lengths`` a histogram {tokens drafted: rounds}. A round that drafts nothing counts.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_steps: int = 0
    early_stops: int = 0
    lengths: Counter[int] = field(default_factory=Counter)

    @property
    def wasted(self) -> int:
        """Drafted tokens the target did not accept."""
        return self.drafted - self.accepted

    def add_round(self, outcome: Outcome, *, draft_steps: int, early_stop: bool) -> None:
        """Count one verified round."""
        self.rounds += 1
        self.drafted += outcome.drafted
        self.accepted += outcome.accepted
        self.draft_steps += draft_steps
        self.early_stops += early_stop
        self.lengths[outcome.depth] += 1

    def reset(self) -> None:
        """Back to zero, in place."""
        self.__init__()  # type: ignore[misc]


class Patch:
    """A handle on one patched model: counts, the policy, and the way back.

    ``with patch_<host>(model) as patch: ...`` reverts on leaving the block.

    Args:
        model: the object users pass to ``patch_<host>``; it carries the mark that forbids a second patch.
        policy: the rule in charge.

    Raises:
        PatchError: if ``model`` is patched already.
    """

    def __init__(self, model: object, policy: LengthPolicy) -> None:
        require_unpatched(model)
        self.policy = policy
        self.stats = PatchStats()
        self._undo: list[Callable[[], None]] = []
        self.active = True
        self.set(model, _MARK, self)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name``; reverting puts back the old value, or deletes what was not there."""
        old = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)

        def undo() -> None:
            if vars(owner).get(name, _ABSENT) is not value:
                raise PatchError(
                    f"{type(owner).__name__}.{name} was replaced after this patch; "
                    "undo what was patched on top first, then revert again."
                )
            delattr(owner, name) if old is _ABSENT else setattr(owner, name, old)

        self._undo.append(undo)

    def on_revert(self, undo: Callable[[], None]) -> None:
        """Run ``undo`` when the patch is reverted, in reverse order with the swaps."""
        self._undo.append(undo)

    def revert(self) -> None:
        """Put the host back as it was; a second call does nothing.

        Raises:
            PatchError: if something was patched on top. Nothing is lost: revert again afterwards.
        """
        while self._undo:
            self._undo[-1]()
            self._undo.pop()
        self.active = False

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.revert()

    def __repr__(self) -> str:
        state = "on" if self.active else "reverted"
        return f"<Patch {state}: {self.policy!r}, {self.stats.rounds} rounds>"


def require_unpatched(model: object) -> None:
    """Check that no patch is on this model.

    Raises:
        PatchError: one is.
    """
    if (patch := getattr(model, _MARK, None)) is not None:
        raise PatchError(
            f"this {type(model).__name__} is patched already, by {patch.policy!r}; "
            "call revert() on the patch you hold before patching again."
        )


def require_version(requirement: str) -> str:
    """Check one host's version against e.g. ``"transformers>=4.57,<6"``; return what is installed.

    Raises:
        HostVersionError: missing, or outside the range.
    """
    from packaging.requirements import Requirement  # every host depends on packaging

    wanted = Requirement(requirement)
    try:
        found = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        raise HostVersionError(
            f"expected {requirement}, found none installed; install it with: pip install '{requirement}'"
        ) from None
    if not wanted.specifier.contains(found, prereleases=True):
        raise HostVersionError(
            f"expected {requirement}, found {wanted.name} {found}. This adapter patches names it has been "
            "tested on and does not guess; install a version in the range, or look for a newer svip-adapters."
        )
    return found


def require_parameters(function: Callable[..., Any], *expected: str, exact: bool = False) -> None:
    """Check that a host function still takes these parameters, by name and in order.

    Args:
        exact: and no others after them.

    Raises:
        UnsupportedHostError: it does not.
    """
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind not in kinds)
    if (found if exact else found[: len(expected)]) != expected:
        raise UnsupportedHostError(
            f"expected {function.__qualname__}({', '.join(expected)}), found ({', '.join(found)}): the host "
            "changed under the same version range. Please report it with your version; nothing was patched."
        )


def fingerprint(function: Callable[..., Any]) -> str:
    """Twelve hex digits of a function's syntax: comments and formatting do not count."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    # Not ast.dump, whose text changes from one Python to the next.
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def warn_if_changed(function: Callable[..., Any], tested: str, advice: str) -> None:
    """Warn the caller of ``patch_<host>`` where a host function's text is not the one that was tested.

    For hosts without a version: their parameters are checked, and what is inside may still work.

    Args:
        tested: its fingerprint. advice: what to do, a sentence.
    """
    try:
        found = fingerprint(function)
    except OSError:
        found = "no source"
    if found != tested:
        warnings.warn(
            f"expected {function.__qualname__} as tested ({tested}), found another text of it ({found}); its "
            f"parameters are the same. {advice}",
            stacklevel=4,
        )
