"""Recorded distributions, as a rule and the tree builder see them."""

from __future__ import annotations

from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor

from svip_adapters.adapters._tree_steps import Frontier, LevelRule, mean_entropy
from svip_adapters.errors import PolicyError
from svip_adapters.policy import DraftStep

from ..errors import BenchError
from .nodes import Nodes

__all__ = ["RecordedDrafter", "RecordedStep"]


class RecordedStep(DraftStep):
    """Rows of a recording: every signal is there, the logits are not.

    Args:
        rows: (N,) of ``nodes``. drawn: (N,) the likeliest tokens, for a rule that sees the draw.
    """

    def __init__(
        self, nodes: Nodes, rows: Tensor, *, depth: int, path_logp: Tensor, drawn: Tensor | None
    ) -> None:
        self.depth, self.drawn, self._path_logp, self._rows = depth, drawn, path_logp, rows
        self._nodes = nodes

    @property
    def logits(self) -> NoReturn:  # type: ignore[override]
        raise PolicyError(
            "this step is replayed from a trace, which keeps signals, not logits; use step.entropy, "
            "top1_prob, margin, drawn_prob, path_logp, depth, count or device, or measure the rule with "
            "svip-bench run."
        )

    @cached_property
    def entropy(self) -> Tensor:
        return self._nodes.entropy[self._rows]

    @cached_property
    def top1_prob(self) -> Tensor:
        return self._nodes.top1_prob[self._rows]

    @cached_property
    def margin(self) -> Tensor:
        return self._nodes.margin[self._rows]

    @cached_property
    def drawn_logp(self) -> Tensor:
        # Without a drawn token the contract's own error.
        return super().drawn_logp if self.drawn is None else self._nodes.logp[self._rows, 0]

    @property
    def count(self) -> int:
        return len(self._rows)

    @property
    def device(self) -> torch.device:
        return self._rows.device


class _RecordedMean(RecordedStep):
    @cached_property
    def entropy(self) -> Tensor:
        mean: Tensor = mean_entropy(self.path_logp, super().entropy)
        return mean


class RecordedFrontier:
    """Some rows as ``draft_tree``'s frontier."""

    def __init__(self, nodes: Nodes, rows: Tensor) -> None:
        self._nodes, self._rows = nodes, rows

    def children(self, k: int) -> tuple[Tensor, Tensor]:
        if k > self._nodes.tokens.shape[1]:
            raise BenchError(
                f"expected a tree at most {self._nodes.tokens.shape[1]} wide, which is what was recorded, "
                f"found top_k = {k}; record again with a larger --top-k."
            )
        return self._nodes.logp[self._rows, :k], self._nodes.tokens[self._rows, :k]

    def step(self, rule: LevelRule, *, depth: int, path_logp: Tensor, likeliest: Tensor | None) -> DraftStep:
        kind = _RecordedMean if rule == "mean" else RecordedStep
        return kind(self._nodes, self._rows, depth=depth, path_logp=path_logp, drawn=likeliest)


class RecordedDrafter:
    """The recorded tree at one position as ``draft_tree.Drafter``.

    Args:
        next_rows: (R, k) row of each child's own distribution, -1 where it was not recorded.
        first: row of the position's first distribution.
    """

    def __init__(self, nodes: Nodes, next_rows: Tensor, first: int) -> None:
        self._nodes, self._next, self._rows = nodes, next_rows, torch.tensor([first])

    def first(self) -> Frontier:
        return RecordedFrontier(self._nodes, self._rows)

    def next(self, tokens: Tensor, rows: Tensor) -> Frontier:
        parents = self._rows[rows]
        child = (self._nodes.tokens[parents] == tokens[:, None]).int().argmax(1)
        self._rows = self._next[parents, child]
        if bool((self._rows < 0).any()):
            raise BenchError(
                "expected drafts within what was recorded, found a rule that drafts on after a less likely "
                "node; give it @min_probability=P with P no less than the trace's floor (and max_depth no "
                "more than its length), or record again with a lower --floor (a larger --length)."
            )
        return RecordedFrontier(self._nodes, self._rows)

    def target_ids(self, tokens: Tensor) -> Tensor:
        return tokens
