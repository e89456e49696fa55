"""EAGLE-2's draft layer on current transformers: one Llama layer over (token, feature) pairs.

With the seam of the authors' code, ``topK_genrate`` and what it uses, so that ``patch_eagle`` treats both
alike; names of weights are theirs as well.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from svip_adapters.adapters._eagle_layer import host_tree

from ..extras import import_extra
from .draft_files import read_tensors, save_tensors, wrong_file

__all__ = ["WEIGHTS", "EagleLayer", "load_layer", "save_layer"]

WEIGHTS = Path(__file__).with_name("weights") / "eagle2.safetensors"
KIND = "eagle_layer"

Past = tuple[tuple[Tensor, Tensor], ...]


class EagleLayer(nn.Module):
    """fc([embedding, feature]) -> one Llama layer without its first norm -> the next feature, estimated.

    A feature is the target's last hidden state, after its final norm: its head makes logits of it.

    Args:
        target: a LlamaForCausalLM; its embedding is shared, not copied.
        total_tokens: nodes sent to the target, the root not counted.
        depth: levels drafted after the first. top_k: width of a level.
    """

    def __init__(self, target: Any, *, total_tokens: int = 59, depth: int = 7, top_k: int = 10) -> None:
        super().__init__()
        self.config = copy.deepcopy(target.config)
        self.config.num_hidden_layers = 1
        size = self.config.hidden_size
        self.embed_tokens = target.get_input_embeddings()
        self.rotary = type(target.model.rotary_emb)(self.config)
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

    def own_state(self) -> dict[str, Tensor]:
        """The layer's own tensors; the embedding is the target's."""
        return {name: t for name, t in self.state_dict().items() if not name.startswith("embed_tokens.")}

    def load(self, path: Path, target: Any) -> None:
        """Take the tensors of a file that ``save_layer`` wrote; raises as ``load_layer`` does."""
        tensors, _ = read_tensors(path, target, kind=KIND)
        shapes = {name: tuple(t.shape) for name, t in self.own_state().items()}
        if shapes != (found := {name: tuple(t.shape) for name, t in tensors.items()}):
            raise wrong_file(path, str(shapes), str(found))
        self.load_state_dict(tensors, strict=False)

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
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        attention: Any = self.layers[0].self_attn
        rotate = import_extra("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
        query, key, value = (
            project(hidden).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = rotate(query, key, *self.rotary(hidden, positions))
        if past_key_values is not None:
            key = torch.cat((past_key_values[0][0], key), dim=2)
            value = torch.cat((past_key_values[0][1], value), dim=2)
        mask = self._visible(query.shape[2], key.shape[2], hidden.device)
        out = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        return attention.o_proj(out.transpose(1, 2).flatten(2)), (key, value)

    def _visible(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """(queries, keys) bool: causal, or everything before the tree and the tree's own mask."""
        if self.tree_mask is None:
            return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
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


def save_layer(path: Path, layer: EagleLayer, target_sha256: str, **notes: str) -> None:
    """Write a layer's own tensors in bf16; ``notes`` go to the header."""
    save_tensors(path, layer.own_state(), kind=KIND, target_sha256=target_sha256, **notes)


def load_layer(target: Any, path: Path = WEIGHTS) -> EagleLayer:
    """The trained layer for ``target``, on its dtype and device.

    Raises:
        ModelError: the file is missing, of another format or shape, or for another target.
    """
    layer = EagleLayer(target)
    layer.load(path, target)
    for own in (layer.fc, layer.layers):  # not the embedding, which is the target's, nor float32 frequencies
        own.to(target.device, target.dtype).requires_grad_(False)
    layer.rotary.to(target.device)
    return layer.eval()
