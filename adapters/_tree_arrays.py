"""The arrays with which a target verifies a draft tree, built without a loop over nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Tree", "arrange"]


@dataclass(frozen=True)
class Tree:
    """A draft tree of n nodes below its root; the root is node 0 and holds no drafted token.

    Attributes:
        tokens: (n,) target ids, on the draft's device; parents stand before their children.
        mask: (n + 1, n + 1) bool on the CPU, True where a row's node is a column's descendant, or itself.
        depths: (n + 1,) int64 on the CPU, 0 for the root.
        paths: (leaves, depth + 1) int64 on the CPU: nodes from root to leaf, filled up with -1.
    """

    tokens: Tensor
    mask: Tensor
    depths: Tensor
    paths: Tensor

    @property
    def depth(self) -> int:
        """Length of the longest path, the root not counted."""
        return self.paths.shape[1] - 1


def arrange(tokens: Tensor, chosen: Any, ordered: bool) -> Tree:
    """Make a tree of some candidates, ancestor-closed.

    Args:
        tokens: (candidates,) target ids.
        chosen: (3, m) ints: numbers of candidates, of their parents (-1: the root), 0 for one to leave out.
        ordered: sort paths by their nodes, shorter ones last among those with the same start.
    """
    keep = chosen[2] > 0
    keep[0] = True
    numbers, parents = chosen[0][keep], chosen[1][keep]
    order = numbers.argsort()
    numbers, parents = numbers[order], parents[order]
    count = len(numbers) + 1
    parent = np.zeros(count, dtype=np.int64)  # of each node; the root is its own
    parent[1:] = np.where(parents < 0, 0, np.searchsorted(numbers, parents) + 1)
    node = np.arange(count)
    lines = [node]  # lines[s][i]: the node s steps above i
    while lines[-1].any():
        lines.append(parent[lines[-1]])
    above = np.stack(lines)
    mask = np.zeros((count, count), dtype=bool)
    mask[node, above] = True
    depths = mask.sum(1) - 1
    inner = np.zeros(count, dtype=bool)
    inner[parent] = True
    leaves = node[~inner]
    steps = depths[leaves, None] - np.arange(len(lines))
    paths = np.where(steps < 0, -1, above[steps.clip(0), leaves[:, None]])
    if ordered:
        paths = paths[np.lexsort(np.where(paths < 0, count, paths).T[::-1])]
    index = torch.from_numpy(numbers).to(tokens.device)
    return Tree(tokens[index], *map(torch.from_numpy, (mask, depths, paths)))
