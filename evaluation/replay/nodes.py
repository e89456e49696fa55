"""What a draft proposed at every position of one text: one row a draft distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from svip_adapters.policy import DraftStep

__all__ = ["NodeLog", "Nodes"]

SIGNALS = ("entropy", "top1_prob", "margin")
SAMPLED = ("accept", "scaled")


@dataclass(frozen=True)
class Nodes:
    """R recorded distributions of a text with P positions, in the order drafted.

    Attributes:
        starts: P + 1 numbers: rows ``starts[p]`` to ``starts[p + 1]`` were drafted after p tokens of the
            answer; the first of them is the distribution after the whole context.
        parents: (R,) row of the distribution that this one's token was drawn from; -1 for a first one.
        children: (R,) which of its parent's tokens leads here: 0 for the likeliest.
        tokens: (R, k) likeliest tokens, target ids. logp: (R, k) their log-probabilities.
        entropy, top1_prob, margin: (R,), see ``DraftStep``.
        accept, scaled: (R,) float64 and float32, of a sampled text only, see ``record_sampled``.
    """

    starts: list[int]
    parents: Tensor
    children: Tensor
    tokens: Tensor
    logp: Tensor
    entropy: Tensor
    top1_prob: Tensor
    margin: Tensor
    accept: Tensor | None = None
    scaled: Tensor | None = None

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def positions(self) -> int:
        """P."""
        return len(self.starts) - 1


@dataclass
class NodeLog:
    """Takes down distributions as they are drafted.

    Args:
        k: tokens kept of each.
    """

    k: int
    _starts: list[int] = field(default_factory=list)
    _parents: list[int] = field(default_factory=list)
    _children: list[int] = field(default_factory=list)
    _parts: list[tuple[Tensor, ...]] = field(default_factory=list)

    def begin(self) -> None:
        """The next position; one that gets no rows is not drafted at."""
        self._starts.append(len(self._parents))

    def add(
        self, step: DraftStep, best: tuple[Tensor, Tensor], parents: Sequence[int], children: Sequence[int]
    ) -> range:
        """N distributions; returns their rows.

        Args:
            best: log-probabilities and target ids, (N, k) each.
            parents: row of each one's parent. children: which child of it.
        """
        first = len(self._parents)
        self._parents += parents
        self._children += children
        self._parts.append((best[1], best[0], *(getattr(step, name) for name in SIGNALS)))
        return range(first, len(self._parents))

    def nodes(self) -> Nodes:
        """All of it."""
        empty = (torch.empty(0, self.k, dtype=torch.long), torch.empty(0, self.k), *[torch.empty(0)] * 3)
        columns = [torch.cat(column).cpu() for column in zip(*(self._parts or [empty]), strict=True)]
        return Nodes(
            [*self._starts, len(self._parents)],
            torch.tensor(self._parents, dtype=torch.long),
            torch.tensor(self._children, dtype=torch.long),
            *columns,
        )
