"""The dynamic draft tree of EAGLE-2 (Li et al., arXiv 2406.16858), grown under a length policy.

Levels of candidates are drafted, each node scored by the draft's probability of its path; in the end the
best ones form the tree that the target verifies. The policy sees the frontier, one distribution a node.
Children of a stopped node stay candidates but get no children of their own (a rule that stops before drawing
leaves them out as well); when all nodes of a frontier have stopped, drafting ends. Which candidates exist
depends on the draft's distributions alone, nothing is drawn at random, so no answer of a policy can bias the
output.

Host-free: a ``Drafter`` stands between this and a host. With a policy that never stops, the tree is the one
the authors' ``topK_genrate`` builds (``eagle/model/cnets.py``), node for node.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from svip_adapters.errors import UnsupportedHostError
from svip_adapters.policy import LengthPolicy

from ._tree_arrays import Tree, arrange
from ._tree_steps import Frontier, LevelRule, tree_stop

__all__ = ["Drafter", "Grown", "TreeShape", "grow"]


class Drafter(Protocol):
    """The draft model of one round, after its forward over the tokens that were accepted last."""

    def first(self) -> Frontier:
        """The one distribution after the whole context."""

    def next(self, tokens: Tensor, rows: Tensor) -> Frontier:
        """Draft one level on: distributions after ``tokens`` (k,), target ids; ``rows`` (k,) are the rows
        of the last frontier that they are children of."""

    def target_ids(self, tokens: Tensor) -> Tensor:
        """Draft-vocabulary ids to target ids, of any shape."""


@dataclass(frozen=True, kw_only=True)
class TreeShape:
    """What bounds a tree.

    Attributes:
        budget: most nodes sent to the target, the root not counted.
        top_k: width of a frontier, and children drafted of each node.
        levels: most levels drafted; at least 1 is.
        min_probability: a node is sent to the target, and drafted on, only if its path is likelier than
            this (the likeliest is always sent). A node pays for itself while its probability of being
            accepted exceeds the cost of verifying one node more, divided by the time one more accepted token
            saves.
        level_rule: what a policy's answers mean on a frontier; see ``LevelRule``.

    Raises:
        UnsupportedHostError: a budget, width or number of levels below 1.
    """

    budget: int
    top_k: int
    levels: int
    min_probability: float = 0.0
    level_rule: LevelRule = "branch"

    @property
    def floor(self) -> float:
        """Log-probability of a path from which on its last node is sent to the target."""
        return math.log(self.min_probability) if self.min_probability else -math.inf

    def __post_init__(self) -> None:
        for name, value in (("budget", self.budget), ("top_k", self.top_k), ("levels", self.levels)):
            if value < 1:
                raise UnsupportedHostError(
                    f"expected a draft tree with a {name} of at least 1, found {value}; set the draft "
                    "layer's total_tokens (nodes below the root), top_k and depth accordingly."
                )


@dataclass(frozen=True)
class Grown:
    """A tree, levels drafted (forwards of the draft, the first included) and whether the policy ended it."""

    tree: Tree
    levels: int
    early: bool


def grow(drafter: Drafter, policy: LengthPolicy | None, shape: TreeShape, *, ordered: bool) -> Grown:
    """Draft one tree.

    Args:
        policy: None never stops, without asking.
        ordered: sort the paths as the authors' code does for sampling.

    Raises:
        PolicyError: the policy's answer has a wrong shape, type or device.
        UnsupportedHostError: the draft's vocabulary is smaller than a level is wide.
    """
    frontier, k = drafter.first(), shape.top_k
    candidates = _Candidates()
    log_probs, best = frontier.children(k)
    scores = log_probs.new_zeros(1)
    parents = torch.full_like(best[:, 0], -1)  # the root is no candidate
    before = policy is not None and policy.stops_before
    for level in itertools.count(1):
        reached = log_probs + scores[:, None]
        going = reached = reached.masked_fill(reached.isnan(), -math.inf)  # garbage is impossible
        tokens, last = drafter.target_ids(best), level >= shape.levels
        width, stopped = k, False
        if policy is not None and (before or not last):
            likeliest = None if before else best[:, 0]
            step = frontier.step(shape.level_rule, depth=level - 1, path_logp=scores, likeliest=likeliest)
            stop = tree_stop(policy, step, shape.level_rule)
            going = reached.masked_fill(stop[:, None], -math.inf)
            if not last:
                width, stopped = _frontier(going, stop, shape)
        candidates.add(tokens, going if before else reached, parents)
        if last or stopped or not width:
            break
        # The first level is in order already, and a second topk may order equal scores differently.
        chosen = going.view(-1).topk(width).indices if level > 1 else torch.arange(width, device=best.device)
        parents = candidates.last_start + chosen
        scores = going.view(-1)[chosen]
        frontier = drafter.next(tokens.view(-1)[chosen], chosen // k)
        log_probs, best = frontier.children(k)
    return Grown(candidates.tree(shape, ordered), level, early=stopped)


def _frontier(going: Tensor, stop: Tensor, shape: TreeShape) -> tuple[int, bool]:
    """How many nodes are drafted on, and whether the policy stopped all: the one read a level.

    Of a node that is not likely enough to be verified no child is either.
    """
    worth = (going > shape.floor).sum().clamp(max=shape.top_k)
    width, stopped = torch.stack((worth, stop.all())).tolist()
    return width, bool(stopped)


class _Candidates:
    """All nodes drafted so far, in the order drafted."""

    def __init__(self) -> None:
        self.tokens: list[Tensor] = []
        self.scores: list[Tensor] = []
        self.parents: list[Tensor] = []
        self.count = self.last_start = 0

    def add(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> None:
        """The children (rows, k) of ``parents`` (rows,), which are candidates' numbers."""
        self.tokens.append(tokens.view(-1))
        self.scores.append(scores.view(-1))
        self.parents.append(parents.repeat_interleave(tokens.shape[1]))
        self.last_start = self.count
        self.count += tokens.numel()

    def tree(self, shape: TreeShape, ordered: bool) -> Tree:
        """The likeliest candidates, impossible ones left out. A stable sort takes a parent before an equally
        likely child (one of probability 1), so no node is ever without its parent."""
        scores, parents = torch.cat(self.scores), torch.cat(self.parents)
        chosen = scores.sort(descending=True, stable=True).indices[: shape.budget]
        worth = scores[chosen] > shape.floor
        packed = torch.stack((chosen, parents[chosen], worth)).cpu().numpy()  # the one read a tree
        return arrange(torch.cat(self.tokens), packed, ordered)
