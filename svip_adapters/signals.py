"""What a draft distribution says about itself: functions of raw logits (N, V), answers (N,) in float32.

Logits may be of any floating dtype; every reduction runs in float32, because the tail of a
half-precision softmax is lost before it is summed. ``-inf`` logits (a reduced draft vocabulary, a
grammar mask) carry probability zero and add nothing.

Garbage is never certain: a row that holds NaN or +inf, or no finite logit at all, answers with the
least certain value there is (entropy +inf, probabilities 0). A rule that stops when it is unsure
therefore stops on a broken draft too, without a line of its own about NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "entropy",
    "entropy_and_log_z",
    "entropy_of_log_probs",
    "log_normalizer",
    "margin",
    "token_logp",
    "top1_prob",
]

# exp(-200) is 0 in float32, so the floor changes no sum; it keeps 0 * -inf from becoming NaN.
_FLOOR = -200.0


def log_normalizer(logits: Tensor) -> Tensor:
    """log sum exp over the vocabulary; NaN for a row without a distribution. Shapes: (N, V) -> (N,)."""
    return torch.logsumexp(logits.float(), dim=-1)


def entropy_and_log_z(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy in nats of softmax(logits) and the log-normaliser, in one go. Shapes: (N, V) -> 2 x (N,).

    With d = logit - max and Z = sum e^d: H = log Z - sum(e^d * d) / Z. Taking d instead of the logit
    keeps full precision when logits are huge; two buffers of (N, V) are written, no more.
    """
    top = logits.amax(dim=-1, keepdim=True).float()
    shifted = (logits - top).float().clamp_(min=_FLOOR)
    weights = shifted.exp()
    z = weights.sum(dim=-1)
    log_z = z.log()
    mean = weights.mul_(shifted).sum(dim=-1) / z
    return (log_z - mean).nan_to_num(nan=math.inf), log_z + top.squeeze(-1)


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy in nats of softmax(logits), at temperature 1. Shapes: (N, V) -> (N,)."""
    return entropy_and_log_z(logits)[0]


def entropy_of_log_probs(log_probs: Tensor) -> Tensor:
    """``entropy`` of a float32 log-softmax that is there already. Shapes: (N, V) -> (N,)."""
    # exp first: the floor keeps 0 * -inf from becoming NaN, and a row of NaN stays one.
    terms = log_probs.exp().mul_(log_probs.clamp(min=_FLOOR))
    return terms.sum(dim=-1).neg_().nan_to_num(nan=math.inf)


def top1_prob(logits: Tensor, log_z: Tensor | None = None) -> Tensor:
    """Probability of the likeliest token. Shapes: (N, V) -> (N,).

    Args:
        logits: (N, V), raw.
        log_z: (N,), ``log_normalizer(logits)`` where the caller already has it.
    """
    log_z = log_normalizer(logits) if log_z is None else log_z
    return (logits.amax(dim=-1).float() - log_z).exp().nan_to_num(nan=0.0)


def margin(logits: Tensor, log_z: Tensor | None = None) -> Tensor:
    """Probability of the likeliest token minus that of the second. Shapes and arguments as ``top1_prob``."""
    log_z = log_normalizer(logits) if log_z is None else log_z
    best = logits.topk(min(2, logits.shape[-1]), dim=-1).values.float()
    p = (best - log_z.unsqueeze(-1)).exp().nan_to_num(nan=0.0)
    return p[:, 0] - p[:, 1:].sum(dim=-1)


def token_logp(logits: Tensor, tokens: Tensor, log_z: Tensor) -> Tensor:
    """Log-probability of one token a row: (N, V) logits, (N,) int64 tokens, (N,) log_z -> (N,)."""
    chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).float()
    return (chosen - log_z).nan_to_num(nan=-math.inf, neginf=-math.inf)
