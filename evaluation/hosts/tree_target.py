"""A target that verifies draft trees of one sequence, over transformers' own cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..extras import import_extra
from .base import cache_keyword

__all__ = ["Round", "TreeTarget", "until"]


@dataclass(frozen=True)
class Round:
    """One forward of the target: tokens gained, nodes it verified, the tree's depth, nodes it accepted."""

    gained: int
    nodes: int = 0
    depth: int = 0
    accepted: int = 0


class TreeTarget:
    """One sequence of a LlamaForCausalLM: its cache holds what was accepted, without the last token.

    Args:
        model: the target.
    """

    def __init__(self, model: Any) -> None:
        self._body, self.head = model.model, model.lm_head
        self._cache: Any = import_extra("transformers").DynamicCache()
        self._cache_name = cache_keyword(model)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        length: int = self._cache.get_seq_length()
        return length

    @property
    def last_keys(self) -> tuple[Tensor, Tensor]:
        """Keys, rotated, and values of the last layer, (1, key heads, length, head size) each."""
        layer = self._cache.layers[-1]
        return layer.keys, layer.values

    def read(self, ids: Tensor) -> Tensor:
        """Last hidden states (1, L, H) of L tokens (1, L) that follow what is cached."""
        return self._forward(ids)

    def verify(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> Tensor:
        """Last hidden states (1, n + 1, H) of a tree.

        Args:
            tokens: (1, n + 1) the root, which follows what is cached, and n drafted nodes.
            mask: (1, 1, n + 1, n + 1), 1 where a row's node descends from a column's, or is it.
            depths: (n + 1,) of the nodes.
        """
        seen = mask.new_ones(*mask.shape[:3], self.length)
        visible = torch.cat((seen, mask), dim=3).to(tokens.device) > 0
        positions = (self.length + depths.to(tokens.device))[None]
        return self._forward(tokens, attention_mask=visible, position_ids=positions)

    def keep(self, path: list[int], nodes: int) -> None:
        """Of the last ``nodes`` in the cache keep those of ``path``; what is before is not moved."""
        start = self.length - nodes
        index, end = torch.tensor(path) + start, start + len(path)
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                tensor = getattr(layer, name)
                tensor[:, :, start:end] = tensor[:, :, index]
                setattr(layer, name, tensor[:, :, :end])

    def _forward(self, ids: Tensor, **arguments: Any) -> Tensor:
        arguments |= {self._cache_name: self._cache, "use_cache": True}
        hidden: Tensor = self._body(input_ids=ids, **arguments).last_hidden_state
        return hidden


def until(tokens: list[int], eos_token_id: int | None, most: int) -> list[int]:
    """What is output of a round's tokens: up to and with the end of the sequence, at most ``most``."""
    end = tokens.index(eos_token_id) + 1 if eos_token_id in tokens else len(tokens)
    return tokens[: min(end, most)]
