"""Markov chains whose law is known, and how far counts are from it: what the tests of sampling share."""

import torch

TOKENS = 8
TEMPERATURE = 0.8


def tables():
    """Logits (V, V) of target and draft: rows that are mostly certain, so that drafts get long."""
    generator = torch.Generator().manual_seed(0)
    likely = torch.tensor([0.95, 0.5, 0.93, 0.9, 0.95, 0.6, 0.97, 0.9])
    target = 0.7 * torch.randn(TOKENS, TOKENS, generator=generator)
    for row, p in enumerate(likely):
        others = torch.arange(TOKENS) != (following := (row + 3) % TOKENS)
        target[row, following] = target[row, others].logsumexp(0) + torch.logit(p)
    draft = target + 0.5 * torch.randn(TOKENS, TOKENS, generator=generator)
    return target, draft


def p_value(counts, logits):
    """Chance of counts this far from the law, cells with fewer than five expected pooled by row."""
    expected = counts.sum(-1, keepdim=True) * (logits.double() / TEMPERATURE).softmax(-1)
    rare = expected < 5
    pooled = [torch.where(rare, t, 0).sum(-1) for t in (counts, expected)]
    terms = torch.where(rare, 0, (counts - expected) ** 2 / expected).sum()
    kept = pooled[1] >= 5
    terms += ((pooled[0] - pooled[1]) ** 2 / pooled[1])[kept].sum()
    freedom = (~rare).sum() + kept.sum() - len(counts)
    return torch.special.gammaincc(freedom / 2, terms / 2).item()
