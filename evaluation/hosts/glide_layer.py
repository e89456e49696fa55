"""GliDe's drafter on current transformers: one layer that also attends to the target's own keys and values.

After the paper (Du et al., arXiv 2402.02082), written anew: the authors' repository has no licence. Two
departures: a norm before the attention to the target, and a projection before the target's head, without
which a drafter on tied embeddings would begin certain of the token it has just read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..extras import import_extra
from .draft_layer import DraftLayer, ReducedHead
from .llama_attention import KeysValues, attend, causal

__all__ = ["GlideLayer", "block_mask"]


class GlideLayer(DraftLayer):
    """embedding -> self-attention -> attention to the target's last layer -> MLP -> the target's next state.

    Args:
        target: a LlamaForCausalLM; its embedding is shared, not copied.
        block_size: tokens from the newest visible key of the target to the furthest query in training.
    """

    kind = "glide_layer"
    weights = Path(__file__).with_name("weights") / "glide.safetensors"
    vocab_ids: Tensor  # (R,) what it can draft

    def __init__(self, target: Any, *, block_size: int = 5) -> None:
        super().__init__(target)
        llama = import_extra("transformers.models.llama.modeling_llama")
        config, size = self.config, self.config.hidden_size
        config.block_size = block_size
        self.register_buffer("vocab_ids", torch.arange(config.vocab_size))
        self.self_norm, self.cross_norm, self.mlp_norm, self.norm = (
            llama.LlamaRMSNorm(size, eps=config.rms_norm_eps) for _ in range(4)
        )
        self.self_attn = llama.LlamaAttention(config, 0)
        heads = self.self_attn.q_proj.out_features
        self.cross_q, self.cross_o = nn.Linear(size, heads, bias=False), nn.Linear(heads, size, bias=False)
        self.mlp = llama.LlamaMLP(config)
        self.projection = nn.Linear(size, size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        large_keys: KeysValues,
        past: KeysValues | None = None,
        cross_mask: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Estimates of the target's last hidden states.

        Args:
            input_ids: (B, L) tokens that follow ``past``.
            large_keys: keys, rotated, and values of the target's last layer, (B, key heads, N, head size).
            past: this layer's own, of the tokens before.
            cross_mask: (L, N) bool, True where a token sees a key of the target; None: it sees all.

        Returns:
            (B, L, H) and the layer's own keys and values.
        """
        start = 0 if past is None else past[0].shape[2]
        positions = torch.arange(start, start + input_ids.shape[1], device=input_ids.device)[None]
        hidden = self.embed_tokens(input_ids)
        rotary = self.rotary(hidden, positions)
        attended, past = attend(self.self_attn, self.self_norm(hidden), rotary, past, None)
        hidden = hidden + attended
        hidden = hidden + self._cross(self.cross_norm(hidden), large_keys, rotary, cross_mask)
        hidden = hidden + self.mlp(self.mlp_norm(hidden))
        estimates: Tensor = self.projection(self.norm(hidden))
        return estimates, past

    def _cross(self, hidden: Tensor, large_keys: KeysValues, rotary: KeysValues, mask: Any) -> Tensor:
        rotate = import_extra("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
        query = self.cross_q(hidden).unflatten(-1, (-1, large_keys[0].shape[3])).transpose(1, 2)
        query, _ = rotate(query, query[:, :0], *rotary)  # the keys are rotated already
        out = nn.functional.scaled_dot_product_attention(query, *large_keys, attn_mask=mask, enable_gqa=True)
        crossed: Tensor = self.cross_o(out.transpose(1, 2).flatten(2))
        return crossed

    def resize(self, tensors: Mapping[str, Tensor]) -> None:
        if "vocab_ids" in tensors:
            self.vocab_ids = tensors["vocab_ids"].long()

    def head(self, target: Any) -> ReducedHead:
        """The target's head over what can be drafted."""
        rows = target.lm_head.weight.detach()[self.vocab_ids]
        return ReducedHead(rows, self.vocab_ids, self.config.vocab_size)


def block_mask(length: int, block_size: int, phase: int = 0) -> Tensor:
    """(length, length) bool: a token sees the target's keys of the blocks before its own (the paper's
    training mask); the first block is causal, so that no row is empty.

    Args:
        phase: tokens by which the first block is shorter: blocks fall elsewhere, gaps of all lengths occur
            at every position.
    """
    block = (torch.arange(length) + phase) // block_size
    return (block[:, None] > block) | ((block == 0) & (block[:, None] == 0) & causal(length, length))
