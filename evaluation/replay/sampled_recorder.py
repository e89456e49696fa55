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
    """Drafts after contexts that each go on from the one before.

    Args:
        model: the draft. log: takes down what it draws. length: most tokens of a draft. eos: ends one.
        random: not torch's generator, which drew the text under the same seed.
    """

    def __init__(self, model: Any, log: _Log, *, length: int, eos: int | None, seed: int) -> None:
        self._model, self._log, self._length, self._eos = model, log, length, eos
        self._random = np.random.default_rng(seed)
        self._cache = import_extra("transformers").DynamicCache()
        self._arguments = {cache_keyword(model): self._cache, "use_cache": True, "logits_to_keep": 1}

    def draft(self, logits: Tensor, refused: Tensor, context: Tensor) -> None:
        """A draft that begins with a token by the weights ``refused`` (V,).

        Args:
            logits: (V,) after ``context`` (1, n).
        """
        known, parent, weights = context.shape[1], -1, refused
        for depth in range(self._length):
            token = _drawn(weights, self._random)
            parent = self._log.add(logits, token, parent=parent, depth=depth)
            if token == self._eos or depth + 1 == self._length:
                break
            context = torch.cat((context, torch.tensor([[token]], device=context.device)), dim=1)
            output = self._model(input_ids=context[:, self._cache.get_seq_length() :], **self._arguments)
            logits = output.logits[0, -1]
            weights = self._log.law(logits)
        if (beyond := self._cache.get_seq_length() - known) > 0:
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
    log = _Log(temperatures[1])
    drafter = _Drafter(draft, log, length=length, eos=eos, seed=seed)
    for at, own in enumerate(ids):
        log.begin()
        p, q = _law(said[at], temperatures[0]), log.law(raw[at])
        refused = (q - p).clamp(min=0)
        accept = min(1.0, float(q[own] / p[own])) if refused.any() else 1.0
        log.add(raw[at], own, parent=-1, depth=0, accept=accept)
        if accept < 1:
            drafter.draft(raw[at], refused, tokens[:, : prompt.shape[1] + at])
    return log.nodes()


def _law(logits: Tensor, temperature: float) -> Tensor:
    """(V,) float64 probabilities; divided in float32, as the host does."""
    return (logits.float() / temperature).double().softmax(-1)


def _drawn(weights: Tensor, random: np.random.Generator) -> int:
    """A token, by weights (V,) of any sum."""
    reached = weights.cumsum(0).cpu().numpy()
    return int(np.searchsorted(reached, random.random() * reached[-1], side="right"))
