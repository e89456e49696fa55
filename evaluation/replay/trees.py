"""Replay of a rule on recorded draft trees: the adapter's own builder, on recorded distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from svip_adapters.adapters._bridge import node_floor, plan_length
from svip_adapters.adapters._tree_arrays import Tree
from svip_adapters.adapters._tree_steps import Frontier
from svip_adapters.adapters.draft_tree import Drafter, TreeShape, grow
from svip_adapters.policy import LengthPolicy, Outcome, RoundContext

from .costs import CostModel
from .rounds import Replayed, Rounds, keep_time
from .steps import RecordedDrafter
from .trace import Text

__all__ = ["Trees", "replay_tree"]


class Trees:
    """One text's recorded trees.

    Attributes:
        next_rows: (R, k) row of each child's own distribution, -1 where it was not recorded.
    """

    def __init__(self, text: Text) -> None:
        nodes = text.nodes
        self.text, self.nodes = text, nodes
        self.next_rows = torch.full(nodes.tokens.shape, -1)
        own = torch.arange(len(nodes))
        inner = nodes.parents >= 0
        self.next_rows[nodes.parents[inner], nodes.children[inner]] = own[inner]

    def drafter(self, at: int) -> RecordedDrafter:
        """Drafts after ``at`` tokens of the answer."""
        return RecordedDrafter(self.nodes, self.next_rows, self.nodes.starts[at])

    def run(self, at: int) -> int:
        """Most tokens of a recorded path from there that the target says."""
        row, said = self.nodes.starts[at], self.text.said[at:]
        for length, token in enumerate(said):
            child = (self.nodes.tokens[row] == token).nonzero()
            if not len(child):
                return length
            row = int(self.next_rows[row, child[0, 0]])
            if row < 0:
                return length + 1
        return len(said)


def replay_tree(
    trees: Trees,
    policy: LengthPolicy | None,
    rounds: Rounds,
    shape: TreeShape,
    costs: CostModel | None = None,
) -> Replayed:
    """One turn under a rule.

    Args:
        costs: see ``replay_chain``.
        policy: None is the host's own tree.
        shape: of the host, with the options of the adapter.

    Raises:
        BenchError: the rule drafts on where nothing was recorded.
    """
    text, done = trees.text, Replayed()
    said, total = text.said, len(text.ids)
    if policy is not None:
        keep_time(policy, done, costs)
        policy.begin()
    done.add(gained=1)
    at = 1
    while at < total:
        planned = shape
        if policy is not None:
            context = RoundContext(context_length=text.prompt_length + at, remaining=shape.levels)
            levels = max(rounds.least, plan_length(policy, context))
            floor = node_floor(policy, shape.min_probability)
            planned = replace(shape, levels=levels, min_probability=floor)
        tree = grow(_Counting(trees.drafter(at), done), policy, planned, ordered=False).tree
        matched = _matched(tree, said[at:])
        gained = min(matched + 1, total - at)
        done.add(gained=gained, length=tree.depth, nodes=len(tree.tokens), accepted=min(matched, gained))
        at += gained
        if policy is not None and (rounds.reports_last or at < total):
            policy.verified(Outcome(drafted=len(tree.tokens), accepted=matched, depth=tree.depth))
    return done


class _Counting:
    """A drafter whose forwards are counted."""

    def __init__(self, drafter: Drafter, done: Replayed) -> None:
        self._drafter, self._done = drafter, done
        self.target_ids = drafter.target_ids

    def first(self) -> Frontier:
        self._done.draft[1] += 1
        return self._drafter.first()

    def next(self, tokens: Tensor, rows: Tensor) -> Frontier:
        self._done.draft[len(tokens)] += 1
        return self._drafter.next(tokens, rows)


def _matched(tree: Tree, said: Sequence[int]) -> int:
    """Nodes on the longest path that the target says."""
    wanted = torch.tensor([*said[: tree.depth], *[-1] * (tree.depth - len(said))])
    below = tree.paths[:, 1:]
    same = (tree.tokens[below.clamp(min=1) - 1] == wanted) & (below > 0)
    return int(same.long().cumprod(1).sum(1).max())
