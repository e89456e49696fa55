"""What a policy is shown of a tree's frontier, and what its answers mean there."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal

from torch import Tensor

from svip_adapters.errors import PolicyError
from svip_adapters.policy import DraftStep, LengthPolicy

from ._bridge import ask

__all__ = ["LevelRule", "tree_step", "tree_stop"]

LevelRule = Literal["branch", "best", "mean"]
"""``branch``: each node is decided by its own distribution. ``best``: the likeliest node decides for its
level. ``mean``: each node is shown the entropies' mean, weighted by the paths' probabilities."""


class _MeanStep(DraftStep):
    @cached_property
    def entropy(self) -> Tensor:
        own = super().entropy
        # 0 * inf: a broken row of no weight. It is never certain, so the level is not.
        return (self.path_logp.softmax(0) @ own).nan_to_num(nan=math.inf).expand_as(own)


def tree_step(
    logits: Tensor,
    policy: LengthPolicy,
    rule: LevelRule,
    *,
    depth: int,
    path_logp: Tensor,
    likeliest: Tensor,
    log_probs: Tensor | None = None,
) -> DraftStep:
    """The step at a frontier of N nodes; see ``DraftStep`` for what is not said here.

    Args:
        likeliest: (N,) each node's first child. It stands for the drawn token: if any child is verified,
            that one is.
    """
    kind = _MeanStep if rule == "mean" else DraftStep
    # A copy: the host's own ids must not be within a policy's reach.
    drawn = None if policy.stops_before else likeliest.clone()
    return kind(logits, depth=depth, path_logp=path_logp, drawn=drawn, log_probs=log_probs)


def tree_stop(policy: LengthPolicy, step: DraftStep, rule: LevelRule) -> Tensor:
    """(N,) bool: which nodes stop, by the policy's answer and the rule for levels.

    Raises:
        PolicyError: an answer of another shape, type or device; or "mean" for a rule that does not look at
            the entropy.
    """
    stop = ask(policy, step)
    if rule == "mean" and "entropy" not in vars(step):
        raise PolicyError(
            f'expected a rule that looks at the entropy with level_rule="mean", found {policy!r}, which '
            'does not; use "branch" or "best".'
        )
    if rule == "best":
        return stop.gather(0, step.path_logp.argmax(dim=0, keepdim=True)).expand_as(stop)
    return stop
