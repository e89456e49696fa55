"""One-token steps of a Llama for many rows that stand at different positions, hidden states kept.

transformers' own ``generate`` waits for a batch's longest row and has to be run again for the hidden states;
here a finished row is replaced at once, and what training needs falls out on the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Decoder"]


class Decoder:
    """``rows`` sequences of at most ``length`` tokens in one preallocated cache.

    Attributes:
        inputs: (rows, length, H) bf16, hidden states after the first ``borrowed`` layers.
        final: (rows, length, H) bf16, the last hidden states, after the final norm.
    """

    def __init__(self, target: Any, *, rows: int, length: int, borrowed: int) -> None:
        config, self.body, self.borrowed = target.config, target.model, borrowed
        self.groups, self.size = config.num_key_value_heads, config.head_dim
        shape = (rows, self.groups, length, self.size)
        self.keys = [torch.zeros(shape) for _ in self.body.layers]
        self.values = [torch.zeros(shape) for _ in self.body.layers]
        self.inputs, self.final = torch.zeros(2, rows, length, config.hidden_size, dtype=torch.bfloat16)
        self.rows = torch.arange(rows)

    @torch.inference_mode()
    def step(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Put token ``ids[i]`` at ``positions[i]`` of row i, both (rows,); (rows, H) last hidden states."""
        length = int(positions.max()) + 1
        seen = torch.arange(length) <= positions[:, None]
        hidden = self.body.embed_tokens(ids)
        cos, sin = self.body.rotary_emb(hidden[:, None], positions[:, None])
        for i, layer in enumerate(self.body.layers):
            if i == self.borrowed:
                self.inputs[self.rows, positions] = hidden.bfloat16()
            attended = self._attend(i, layer.input_layernorm(hidden), positions, seen, (cos, sin))
            hidden = hidden + layer.self_attn.o_proj(attended)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        hidden = self.body.norm(hidden)
        self.final[self.rows, positions] = hidden.bfloat16()
        result: Tensor = hidden
        return result

    def _attend(
        self, i: int, hidden: Tensor, positions: Tensor, seen: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> Tensor:
        attention, length = self.body.layers[i].self_attn, seen.shape[1]
        # The query heads of a group stand as that group's queries: its keys need not be repeated.
        query = attention.q_proj(hidden).view(len(hidden), self.groups, -1, self.size)
        key = attention.k_proj(hidden).view(len(hidden), self.groups, 1, self.size)
        value = attention.v_proj(hidden).view(len(hidden), self.groups, self.size)
        self.keys[i][self.rows, :, positions] = _rotate(key, *rotary)[:, :, 0]
        self.values[i][self.rows, :, positions] = value
        return nn.functional.scaled_dot_product_attention(
            _rotate(query, *rotary),
            self.keys[i][:, :, :length],
            self.values[i][:, :, :length],
            attn_mask=seen[:, None, None],
        ).reshape(len(hidden), -1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of (rows, groups, heads, size), as transformers' Llama does it."""
    left, right = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-right, left), dim=-1) * sin[:, None]
