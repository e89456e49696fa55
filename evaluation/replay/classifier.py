"""How far any rule could get that sees what can be seen: a classifier fitted to the trace itself.

Not a rule to use: it needs the target's answers to be fitted. It tells luck from skill: no rule that looks at
the same signals can be expected to do much better than this one does on prompts that it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from svip_adapters.policy import DraftStep, LengthPolicy, RoundContext

from ..extras import import_extra
from .chains import Chains

__all__ = ["KINDS", "Planned", "lengths_at", "probabilities"]

Array = npt.NDArray[np.float64]
DEEPEST = 12  # tokens of a draft that are told apart
RECENT = 8  # positions whose first drafted token was right or not


class Planned(LengthPolicy):
    """Lengths known beforehand, one for each position of a text.

    Args:
        lengths: tokens to draft, by tokens of the answer there are. prompt_length: of its text.
    """

    def __init__(self, lengths: Sequence[int], prompt_length: int) -> None:
        self._lengths, self._prompt = lengths, prompt_length

    def plan(self, context: RoundContext) -> int:
        return self._lengths[context.context_length - self._prompt]

    def stop(self, step: DraftStep) -> torch.Tensor:
        return torch.zeros(step.count, dtype=torch.bool, device=step.device)


def probabilities(texts: Sequence[Chains], folds: Sequence[int], kind: str) -> list[Array]:
    """For each text (P, DEEPEST): the chance that all of the first n + 1 drafted tokens are accepted, given
    what is known when n are drafted, by a classifier fitted to the texts of other folds.

    Args:
        folds: of each text, its part.
        kind: of ``KINDS``.
    """
    inputs, labels = [_inputs(text) for text in texts], [_labels(text) for text in texts]
    found: list[Array] = [np.zeros((len(rows), DEEPEST)) for rows in labels]
    for fold in set(folds):
        others = [i for i, other in enumerate(folds) if other != fold and len(labels[i])]
        x = np.concatenate([inputs[i].reshape(-1, inputs[i].shape[-1]) for i in others])
        y = np.concatenate([labels[i].ravel() for i in others])
        known = ~np.isnan(y)
        model = KINDS[kind]().fit(x[known], y[known] > 0)
        for i, other in enumerate(folds):
            if other == fold and len(labels[i]):
                rows = inputs[i].reshape(-1, inputs[i].shape[-1])
                found[i] = model.predict_proba(rows)[:, -1].reshape(-1, DEEPEST)
    return found


def _boosting() -> Any:
    """Gradient-boosted trees."""
    return import_extra("sklearn.ensemble").HistGradientBoostingClassifier(
        max_leaf_nodes=12,
        learning_rate=0.06,
        max_iter=300,
        min_samples_leaf=40,
        early_stopping=True,
        random_state=0,
    )


def _logistic() -> Any:
    """Logistic regression; a signal that is not there yet is marked."""
    fill = import_extra("sklearn.impute").SimpleImputer(
        strategy="constant", fill_value=0.0, add_indicator=True
    )
    scale = import_extra("sklearn.preprocessing").StandardScaler()
    model = import_extra("sklearn.linear_model").LogisticRegression(C=0.1, max_iter=500)
    return import_extra("sklearn.pipeline").make_pipeline(fill, scale, model)


KINDS: dict[str, Callable[[], Any]] = {"boosting": _boosting, "logistic": _logistic}


def lengths_at(chances: Array, bar: float) -> list[int]:
    """Tokens to draft at each position: on while the next one's chance is above ``bar``."""
    found: list[int] = (chances > bar).cumprod(axis=1).sum(axis=1).astype(int).tolist()
    return found


def _inputs(text: Chains) -> Array:
    """(P, DEEPEST, F) signals by how many tokens are drafted; NaN where there is none yet."""
    entropy, top1, margin = (text.table(name) for name in ("entropy", "top1_prob", "margin"))
    sure = np.clip(top1, 1e-4, 1 - 1e-4)
    signals = [np.sqrt(entropy), np.log(sure / (1 - sure)), margin, text.logp.numpy()]
    signals += [(text.path_logp + text.logp).numpy(), np.sqrt(entropy).cumsum(axis=1)]
    stacked = np.stack([_fit(table) for table in signals], axis=-1)  # (P, DEEPEST, 6), of the token drafted
    positions = len(stacked)
    nothing = np.full((positions, 1, stacked.shape[-1]), np.nan)
    last = np.concatenate((nothing, stacked[:, :-1]), axis=1)
    before = np.concatenate((nothing, last[:, :-1]), axis=1)
    first = np.concatenate((nothing, np.repeat(stacked[:, :1], DEEPEST - 1, axis=1)), axis=1)
    right = np.array([float(ranks[0] == 0) if ranks else 0.0 for ranks in text.ranks])
    recent = np.array([right[max(0, i - RECENT) : i].mean() if i else np.nan for i in range(positions)])
    just = np.concatenate(([np.nan], right[:-1]))[:positions]
    depth = np.tile(np.arange(DEEPEST, dtype=np.float64), (positions, 1))
    history = np.stack(
        (np.repeat(recent[:, None], DEEPEST, 1), np.repeat(just[:, None], DEEPEST, 1), depth), -1
    )
    return np.concatenate((last, before, first, history), axis=-1)


def _labels(text: Chains) -> Array:
    """(P, DEEPEST) 1 where all tokens so far and the next are accepted, 0 where not, NaN where unknown."""
    ranks = np.array([row[:DEEPEST] + [-1] * (DEEPEST - len(row)) for row in text.ranks], dtype=np.float64)
    accepted = (ranks.reshape(-1, DEEPEST) == 0).cumprod(axis=1).astype(np.float64)
    recorded = np.arange(DEEPEST) < np.array(text.lengths)[:, None]
    return np.where(recorded, accepted, np.nan)


def _fit(table: npt.NDArray[np.float32]) -> Array:
    """(P, L) -> (P, DEEPEST)."""
    missing = max(0, DEEPEST - table.shape[1])
    return np.pad(table[:, :DEEPEST].astype(np.float64), ((0, 0), (0, missing)), constant_values=np.nan)
