"""CaPE (Du et al., arXiv 2402.02082): a drafted chain widened where the draft was not confident."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from svip_adapters.adapters._tree_arrays import Tree, arrange

__all__ = ["ALONE", "CAPE", "expand"]

ALONE = (1,) * 11
CAPE = (8, 8, 8, 6, 6, 6, 4, 4, 2, 2, 2)  # the authors' setting


def expand(logits: Tensor, *, temperature: float, prob_to_top: Sequence[int]) -> Tree:
    """The likeliest token of each position as a chain, with the next likeliest ones beside it.

    Args:
        logits: (L, V) of a drafted chain. temperature: of the confidence.
        prob_to_top: tokens of a position by the draft's highest probability there, in tenths: 11 numbers.
    """
    confidence = (logits.float() / temperature).softmax(dim=-1).amax(dim=-1)
    widths = [prob_to_top[tenth] for tenth in (10 * confidence).int().tolist()]
    likeliest = logits.topk(max(widths), dim=-1).indices
    tokens = torch.cat([row[:width] for row, width in zip(likeliest, widths, strict=True)])
    firsts = np.cumsum([0, *widths[:-1]])  # the chain itself
    parents = np.repeat(np.concatenate(([-1], firsts[:-1])), widths)
    numbers = np.arange(len(tokens))
    return arrange(tokens, np.stack((numbers, parents, np.ones_like(numbers))), ordered=False)
