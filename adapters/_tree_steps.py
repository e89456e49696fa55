"""What a policy is shown of a tree's frontier, and what its answers mean there."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal, Protocol

from torch import Tensor

from svip_adapters.errors import PolicyError, UnsupportedHostError
from svip_adapters.policy import DraftStep, LengthPolicy

from ._bridge import ask

__all__ = ["DraftedFrontier", "Frontier", "LevelRule", "mean_entropy", "tree_step", "tree_stop"]

LevelRule = Literal["branch", "best", "mean"]
"""``branch``: each node is decided by its own distribution. ``best``: the likeliest node decides for its
level. ``mean``: each node is shown the entropies' mean, weighted by the paths' probabilities."""


def mean_entropy(path_logp: Tensor, own: Tensor) -> Tensor:
    """(N,) the mean of a level's entropies (N,), weighted by its paths' probabilities."""
    # 0 * inf: a broken row of no weight. It is never certain, so the level is not.
    return (path_logp.softmax(0) @ own).nan_to_num(nan=math.inf).expand_as(own)


class _MeanStep(DraftStep):
    @cached_property
    def entropy(self) -> Tensor:
        return mean_entropy(self.path_logp, super().entropy)


class Frontier(Protocol):
    """The distributions of a tree's N live nodes."""

    def children(self, k: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and draft-vocabulary ids, (N, k) each, of each node's likeliest tokens.

        Raises:
            UnsupportedHostError: the draft's vocabulary is smaller.
        """

    def step(self, rule: LevelRule, *, depth: int, path_logp: Tensor, likeliest: Tensor | None) -> DraftStep:
        """What a policy is shown; see ``tree_step``."""


class DraftedFrontier:
    """A frontier as a draft model gives it.

    Args:
        logits: (N, V), raw.
    """

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        self._log_probs = logits.float().log_softmax(-1)

    def children(self, k: int) -> tuple[Tensor, Tensor]:
        if self._logits.shape[-1] < k:
            raise UnsupportedHostError(
                f"expected a draft vocabulary of at least top_k = {k} tokens, found "
                f"{self._logits.shape[-1]}; lower the draft layer's top_k."
            )
        values, indices = self._log_probs.topk(k)
        return values, indices

    def step(self, rule: LevelRule, *, depth: int, path_logp: Tensor, likeliest: Tensor | None) -> DraftStep:
        return tree_step(
            self._logits,
            rule,
            depth=depth,
            path_logp=path_logp,
            likeliest=likeliest,
            log_probs=self._log_probs,
        )


def tree_step(
    logits: Tensor,
    rule: LevelRule,
    *,
    depth: int,
    path_logp: Tensor,
    likeliest: Tensor | None,
    log_probs: Tensor | None = None,
) -> DraftStep:
    """The step at a frontier of N nodes; see ``DraftStep`` for what is not said here.

    Args:
        likeliest: (N,) each node's first child, for a rule that stops after drawing. It stands for the drawn
            token: if any child is verified, that one is.
    """
    kind = _MeanStep if rule == "mean" else DraftStep
    # A copy: the host's own ids must not be within a policy's reach.
    drawn = None if likeliest is None else likeliest.clone()
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
