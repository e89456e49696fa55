"""Which path of a draft tree the target accepts: greedy, or by multi-candidate speculative sampling."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

__all__ = ["accept", "first_token"]


def first_token(logits: Tensor, temperature: float) -> int:
    """The target's own token after a prompt, from its last logits (1, V)."""
    return accept([-1], torch.zeros(1, 1, dtype=torch.long), logits, temperature)[1]


def accept(tokens: list[int], paths: Tensor, logits: Tensor, temperature: float) -> tuple[list[int], int]:
    """Walk from the root while the target agrees.

    Sampling: a node's children are offered one after the other, each accepted with what probability the
    target has left for it; the rest is renormalised (SpecInfer, Miao et al., arXiv 2305.09781, for drafts
    that are not random). Exact whatever the tree.

    Args:
        tokens: of the nodes, the root first.
        paths: (leaves, depth + 1) nodes from the root, filled up with -1.
        logits: (nodes, V) of the target.
        temperature: 0 is greedy.

    Returns:
        The nodes accepted, the root first, and the target's own token after them.
    """
    children = _children(paths)
    best = logits.argmax(-1).tolist() if temperature == 0 else []
    accepted = [0]
    while True:
        node = accepted[-1]
        offered = [(child, tokens[child]) for child in children.get(node, ())]
        if temperature == 0:
            token, child = best[node], next((c for c, t in offered if t == best[node]), None)
        else:
            token, child = _sample(logits[node].float() / temperature, offered)
        if child is None:
            return accepted, token
        accepted.append(child)


def _children(paths: Tensor) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for path in paths.tolist():
        for parent, child in itertools.pairwise(path):
            if child >= 0 and child not in found.setdefault(parent, []):
                found[parent].append(child)
    return found


def _sample(logits: Tensor, offered: list[tuple[int, int]]) -> tuple[int, int | None]:
    left = logits.softmax(-1)
    for child, token in offered:
        if torch.rand(()) < left[token]:
            return token, child
        left[token] = 0
        left = left / left.sum()
    return int(left.multinomial(1)), None
