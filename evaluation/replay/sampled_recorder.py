"""Record a sampled text: the chance of acceptance at each position, and what is drafted where it fails.

A draft token x ~ q is accepted with probability min(1, p(x) / q(x)); a refused one is replaced by a draw from
(p - q)+. So y is said, and was drafted, with probability min(p(y), q(y)), out of p(y) in
all: seen from the text, the token drafted at one of its positions was accepted with probability
min(1, q(y) / p(y)), independently of all other positions; its mean over y ~ p is that of min(1, p(x) / q(x))
over x ~ q. A refused token comes from (q - p)+, whatever was said in its place, and the draft goes on from it
by itself. On a chain all of that depends on the tokens before alone, not on where the round began: one
recording is right for every rule.

Source: speculative sampling, arXiv 2211.17192, algorithm 1, read backwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from svip_adapters.policy import DraftStep

from ..extras import import_extra
from ..hosts.base import cache_keyword
from .nodes import NodeLog, Nodes

__all__ = ["record_sampled"]


class _Log:
    """Takes down tokens drawn by the draft at ``temperature``."""

    def __init__(self, temperature: float) -> None:
        self._log, self._temperature = NodeLog(1), temperature
        self._accept: list[float] = []
        self._scaled: list[float] = []
        self.begin = self._log.begin

    def law(self, logits: Tensor) -> Tensor:
        """(V,) float64 probabilities that the draft draws by."""
        return _law(logits, self._temperature)

    def add(self, logits: Tensor, token: int, *, parent: int, depth: int, accept: float = 0.0) -> int:
        """One token drawn from (V,) raw logits; returns its row."""
        row = logits[None]
        drawn = torch.tensor([[token]], device=row.device)
        logp = row.float().log_softmax(-1).gather(1, drawn)
        self._accept.append(accept)
        self._scaled.append(float(self.law(logits)[token].log()))
        return self._log.add(DraftStep(row, depth=depth), (logp, drawn), [parent], [0])[0]

    def nodes(self) -> Nodes:
        accept = torch.tensor(self._accept, dtype=torch.float64)
        return replace(self._log.nodes(), accept=accept, scaled=torch.tensor(self._scaled))


class _Drafter:
    """Logits of a draft after any tokens that share a beginning with the ones before."""

    def __init__(self, model: Any) -> None:
        self._model, self._cache = model, import_extra("transformers").DynamicCache()
        self._arguments = {cache_keyword(model): self._cache, "use_cache": True, "logits_to_keep": 1}

    def __call__(self, tokens: Tensor) -> Tensor:
        """(V,) after ``tokens`` (1, n), which go on from what is kept."""
        output = self._model(input_ids=tokens[:, self._cache.get_seq_length() :], **self._arguments)
        logits: Tensor = output.logits[0, -1]
        return logits

    def keep(self, tokens: int) -> None:
        """Forget what comes after so many."""
        if (beyond := self._cache.get_seq_length() - tokens) > 0:
            self._cache.crop(-beyond)


@torch.inference_mode()
def record_sampled(
    target: Any,
    draft: Any,
    prompt: Tensor,
    ids: list[int],
    *,
    length: int,
    temperatures: tuple[float, float],
    seed: int,
    eos: int | None,
) -> Nodes:
    """The draft at every position of a text that the target sampled.

    Args:
        target, draft: causal language models with transformers' interface. prompt: (1, P). ids: the text.
        length: most tokens of a draft. temperatures: of target and draft, above 0. eos: the end-of-sequence
            token.
        seed: of what is refused.

    Returns:
        With k = 1; ``tokens``, ``logp`` (at temperature 1) and ``scaled`` (at the draft's own) are of the
        drawn token. A position's first row is the draft's distribution with the text's own token; ``accept``
        there is the chance that it was drafted and accepted. Unless that is 1, next is the same distribution
        with a refused token, and then the draft that goes on from it.
    """
    tokens = torch.cat((prompt, torch.tensor([ids], device=prompt.device)), dim=1)
    said, raw = (
        model(input_ids=tokens[:, :-1], logits_to_keep=len(ids)).logits[0] for model in (target, draft)
    )
    # Not torch's generator: under this seed it drew the text.
    log, drafter, random = _Log(temperatures[1]), _Drafter(draft), np.random.default_rng(seed)
    for at, own in enumerate(ids):
        log.begin()
        p, q = _law(said[at], temperatures[0]), log.law(raw[at])
        refused = (q - p).clamp(min=0)
        accept = min(1.0, float(q[own] / p[own])) if refused.any() else 1.0
        log.add(raw[at], own, parent=-1, depth=0, accept=accept)
        if accept == 1:
            continue
        token, known = _drawn(refused, random), prompt.shape[1] + at
        row, context = log.add(raw[at], token, parent=-1, depth=0), tokens[:, :known]
        for depth in range(1, length):
            if token == eos:
                break
            context = torch.cat((context, torch.tensor([[token]], device=prompt.device)), dim=1)
            logits = drafter(context)
            token = _drawn(log.law(logits), random)
            row = log.add(logits, token, parent=row, depth=depth)
        drafter.keep(known)
    return log.nodes()


def _law(logits: Tensor, temperature: float) -> Tensor:
    """(V,) float64 probabilities; divided in float32, as the host does."""
    return (logits.float() / temperature).double().softmax(-1)


def _drawn(weights: Tensor, random: np.random.Generator) -> int:
    """A token, by weights (V,) of any sum."""
    reached = weights.cumsum(0).cpu().numpy()
    return int(np.searchsorted(reached, random.random() * reached[-1], side="right"))
