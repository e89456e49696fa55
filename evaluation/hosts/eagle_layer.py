"""EAGLE-2's draft layer on current transformers: one Llama layer over (token, feature) pairs.

With the seam of the authors' code, ``topK_genrate`` and what it uses, so that ``patch_eagle`` treats both
alike; names of weights are theirs as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from svip_adapters.adapters._eagle_layer import host_tree

from ..extras import import_extra
from .draft_layer import DraftLayer
from .llama_attention import KeysValues, attend

__all__ = ["EagleLayer"]

Past = tuple[KeysValues, ...]


class EagleLayer(DraftLayer):
    """fc([embedding, feature]) -> one Llama layer without its first norm -> the next feature, estimated.

    A feature is the target's last hidden state, after its final norm: its head makes logits of it.

    Args:
        target: a LlamaForCausalLM; its embedding is shared, not copied.
        total_tokens: nodes sent to the target, the root not counted.
        depth: levels drafted after the first. top_k: width of a level.
    """

    kind = "eagle_layer"
    weights = Path(__file__).with_name("weights") / "eagle2.safetensors"

    def __init__(self, target: Any, *, total_tokens: int = 59, depth: int = 7, top_k: int = 10) -> None:
        super().__init__(target)
        size = self.config.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=False)
        llama = import_extra("transformers.models.llama.modeling_llama")
        self.layers = nn.ModuleList([llama.LlamaDecoderLayer(self.config, 0)])
        self.layers[0].input_layernorm = nn.Identity()
        self.total_tokens, self.depth, self.top_k = total_tokens, depth, top_k
        self.tree_mask: Tensor | None = None
        self.stable_kv: Past | None = None

    def reset(self) -> None:
        """Forget the tree: the next forward is causal."""
        self.tree_mask = None

    def reset_kv(self) -> None:
        """Forget the sequence."""
        self.stable_kv = None

    def forward(
        self,
        hidden_states: Tensor,
        input_ids: Tensor,
        past_key_values: Past | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool = True,
    ) -> tuple[Tensor, Past]:
        """(B, L, H) features of the tokens before, (B, L) ids -> (B, L, H) next features; keys, values."""
        layer: Any = self.layers[0]
        length = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        if position_ids is None:
            position_ids = torch.arange(length, length + input_ids.shape[1], device=hidden_states.device)
        embedded = self.embed_tokens(input_ids).to(hidden_states.dtype)
        hidden = self.fc(torch.cat((embedded, hidden_states), dim=-1))
        attended, past = self._attend(hidden, position_ids.view(1, -1), past_key_values)
        hidden = hidden + attended
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden)), (past,)

    def _attend(
        self, hidden: Tensor, positions: Tensor, past_key_values: Past | None
    ) -> tuple[Tensor, KeysValues]:
        past = None if past_key_values is None else past_key_values[0]
        length = hidden.shape[1] + (0 if past is None else past[0].shape[2])
        mask = self._visible(hidden.shape[1], length)
        attention: Any = self.layers[0].self_attn
        return attend(attention, hidden, self.rotary(hidden, positions), past, mask)

    def _visible(self, queries: int, keys: int) -> Tensor | None:
        """(queries, keys) bool: everything before the tree, and the tree's own mask; None is causal."""
        if self.tree_mask is None:
            return None
        tree = self.tree_mask[0, 0] > 0
        return torch.cat((tree.new_ones(queries, keys - tree.shape[1]), tree), dim=1)

    @torch.no_grad()
    def topK_genrate(
        self, hidden_states: Tensor, input_ids: Tensor, head: Any, logits_processor: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One tree of fixed depth: tokens (1, n + 1), paths (leaves, levels + 1), mask, depths."""
        tree: tuple[Tensor, Tensor, Tensor, Tensor] = host_tree(
            self, hidden_states, input_ids, head, logits_processor
        )
        return tree
