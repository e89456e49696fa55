"""What training any drafter on stored states has in common: the recipe, the loss, the loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .batches import Batch

__all__ = ["Recipe", "agreeing", "distance", "fit", "frequent", "ridge"]

FEW = 40


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How long and how hard: ``minutes`` or ``steps``, whichever ends first, at most ``tokens`` padded
    positions a step; ``rate`` is AdamW's highest, the last is 5% of it.

    In the loss are the ``vocabulary`` most frequent tokens, a random ``share`` of the positions, and
    ``state_weight`` times the final states' error. ``report``: minutes between reports.
    """

    minutes: float = 60.0
    steps: int = 1_000_000
    rate: float = 1.2e-3
    tokens: int = 1200
    vocabulary: int = 8192
    state_weight: float = 0.5
    share: float = 0.5
    report: float = 5.0
    seed: int = 0


def frequent(rows: list[dict[str, Any]], recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Ids of the most frequent tokens, and of all tokens that occur, in order."""
    counts = torch.bincount(torch.cat([row["ids"] for row in rows]))
    best = counts.argsort(descending=True, stable=True)[: recipe.vocabulary].sort().values
    return best[counts[best] > 0], counts.nonzero().flatten()


def distance(ours: Tensor, theirs: Tensor, head: Tensor, recipe: Recipe) -> Tensor:
    """Loss of estimated final states (N, H): cross-entropy to the target's distribution within ``head``
    (R, H), on a share of the rows, plus the relative squared error of the states."""
    error = ((ours - theirs).square().sum(-1) / theirs.square().sum(-1)).mean()
    drawn = torch.rand(len(ours)).argsort()[: max(1, int(recipe.share * len(ours)))]
    wanted = (theirs[drawn] @ head.T).softmax(-1)
    entropy = -(wanted * (ours[drawn] @ head.T).log_softmax(-1)).sum(-1).mean()
    total: Tensor = recipe.state_weight * error + entropy
    return total


def agreeing(ours: Tensor, theirs: Tensor, head: Tensor) -> Tensor:
    """(N,) bool: whether states (N, H) and (N, H) prefer the same token."""
    return (ours @ head.T).argmax(-1) == (theirs @ head.T).argmax(-1)


@torch.no_grad()
def ridge(pairs: Iterator[tuple[Tensor, Tensor]], rows: int) -> Tensor:
    """(O, I) weight of the linear map from inputs (N, I) to outputs (N, O), solved on ``rows`` rows or more.

    The ridge is relative to each column's own size: embeddings are a tenth of features in size.
    """
    x, y = next(pairs)
    gram, cross, seen = x.T @ x, x.T @ y, len(x)
    while seen < rows:
        x, y = next(pairs)
        gram, cross, seen = gram + x.T @ x, cross + x.T @ y, seen + len(x)
    weight: Tensor = torch.linalg.solve(gram + 1e-3 * gram.diagonal().diag(), cross).T
    return weight


def fit(
    module: nn.Module,
    batches: Iterator[Batch],
    loss: Callable[[Batch], Tensor],
    recipe: Recipe,
    *,
    save: Callable[[], None],
    score: Callable[[list[dict[str, Any]]], Any],
    texts: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    """Train what requires a gradient in ``module``; now and then, and in the end, save it and print a score.

    Args:
        score: agreement with the target on some texts.
        texts: those trained on, and those held out.
    """
    optimizer, trained = _optimizer(module, recipe)
    start = reported = time.monotonic()
    for step, batch in enumerate(batches):
        done = max((time.monotonic() - start) / 60 / recipe.minutes, step / max(1, recipe.steps))
        if done >= 1 or recipe.steps == 0:
            break
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * min(1.0, (step + 1) / 40) * (0.525 + 0.475 * math.cos(math.pi * done))
        optimizer.zero_grad(set_to_none=True)
        loss(batch).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        if time.monotonic() - reported > 60 * recipe.report:
            reported = time.monotonic()
            save()
            print(f"step {step}, {done:.0%}, agreement {score(texts[1][:FEW])}", flush=True)
    save()
    trained_on, held = texts
    print(f"done; agreement on all held-out texts {score(held)}", flush=True)
    print(f"on as many of those trained on {score(trained_on[: len(held)])}", flush=True)


def _optimizer(module: nn.Module, recipe: Recipe) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    trained = [p for p in module.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim > 1]},
        {"params": [p for p in trained if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01), trained
