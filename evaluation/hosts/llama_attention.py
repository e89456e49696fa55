"""Attention of a Llama layer whose keys the caller keeps, for draft layers with masks of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..extras import import_extra

__all__ = ["KeysValues", "attend", "causal"]

KeysValues = tuple[Tensor, Tensor]


def causal(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """(queries, keys) bool: the queries are the last of the keys."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def attend(
    attention: Any, hidden: Tensor, rotary: KeysValues, past: KeysValues | None, mask: Tensor | None
) -> tuple[Tensor, KeysValues]:
    """Self-attention of new positions to kept ones and to one another.

    Args:
        attention: transformers' ``LlamaAttention``; only its projections are used.
        hidden: (B, L, H) of the new positions. rotary: cosine and sine for them.
        past: keys and values (B, key heads, K, head size) kept so far.
        mask: (L, K + L) bool, True where a row sees a column; None is causal.

    Returns:
        (B, L, H) and keys and values with the new ones at the end.
    """
    rotate = import_extra("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
    query, key, value = (
        project(hidden).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    query, key = rotate(query, key, *rotary)
    if past is not None:
        key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
    if mask is None:
        mask = causal(query.shape[2], key.shape[2], hidden.device)
    out = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return attention.o_proj(out.transpose(1, 2).flatten(2)), (key, value)
