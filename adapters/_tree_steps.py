"""What a policy is shown of a tree's frontier, and what its answers mean there."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from torch import Tensor

from svip_adapters.policy import DraftStep, LengthPolicy

__all__ = ["LevelRule", "tree_step"]

LevelRule = Literal["branch", "best", "mean"]
"""``branch``: each node is decided by its own distribution. ``best``: the likeliest node decides for its
level. ``mean``: each node is shown the entropies' mean, weighted by the paths' probabilities."""


class _MeanStep(DraftStep):
    @cached_property
    def entropy(self) -> Tensor:
        own = super().entropy
        return (self.path_logp.softmax(0) @ own).expand_as(own)


def tree_step(
    logits: Tensor, depth: int, path_logp: Tensor, likeliest: Tensor, policy: LengthPolicy, rule: LevelRule
) -> DraftStep:
    """The step at a frontier of N nodes.

    Args:
        logits: (N, V) raw. path_logp: (N,). likeliest: (N,) each node's first child. It stands for the drawn
            token: nothing is drawn here, and if any child is verified, that one is.
    """
    kind = _MeanStep if rule == "mean" else DraftStep
    drawn = None if policy.stops_before else likeliest
    return kind(logits, depth=depth, path_logp=path_logp, drawn=drawn)
