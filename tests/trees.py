"""A made-up drafter and its trees, shared by the tests of the tree builder."""

import torch

from svip_adapters import LengthPolicy
from svip_adapters.adapters._tree_steps import DraftedFrontier
from svip_adapters.adapters.draft_tree import TreeShape

V = 11


class Chain:
    """A drafter whose next token depends on the last one alone; it keeps what it was asked."""

    def __init__(self, seed=0, scale=3.0):
        self.table = scale * torch.randn(V, V, generator=torch.Generator().manual_seed(seed))
        self.asked = [torch.tensor([0])]

    def first(self):
        return DraftedFrontier(self.table[:1])

    def next(self, tokens, rows):
        assert rows.max() < len(self.asked[-1])
        self.asked.append(tokens - 100)
        return DraftedFrontier(self.table[tokens - 100])

    def target_ids(self, tokens):
        return tokens + 100


class Never(LengthPolicy):
    def stop(self, step):
        return torch.zeros(len(step.logits), dtype=torch.bool)


def shape(budget=12, top_k=3, levels=4, **options):
    return TreeShape(budget=budget, top_k=top_k, levels=levels, **options)


def paths_of(tree):
    """Every node's tokens from the root, read from the mask: an independent way to the same thing."""
    tokens = [0, *(tree.tokens - 100).tolist()]
    return [tuple(tokens[j] for j in row.nonzero().flatten().tolist()[1:]) for row in tree.mask]
