"""Train GliDe's drafter on stored texts and the target's last keys and values on them.

It starts as an early exit: self-attention and MLP are copies of the target's first layer, the attention to
the target adds nothing yet, and the projection is solved for by ridge regression of the final states.
The mask is the paper's (arXiv 2402.02082): keys of earlier blocks only, so that a token stands as far from
the newest key as it does when drafted; where blocks begin is random. Loss as for the other drafters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..hosts.glide_layer import GlideLayer, block_mask
from .batches import Batch, collate, endless, load_states
from .distil import Recipe, agreeing, distance, fit, frequent, ridge
from .keys import unpacked

__all__ = ["agreement", "new_layer", "train"]

RIDGE_ROWS = 25_000  # positions that the first projection is solved on


def new_layer(target: Any) -> GlideLayer:
    """An untrained drafter: the target's first layer, attending to its last one with no effect yet."""
    layer, first, last = GlideLayer(target), target.model.layers[0], target.model.layers[-1]
    layer.self_attn.load_state_dict(first.self_attn.state_dict())
    layer.mlp.load_state_dict(first.mlp.state_dict())
    layer.self_norm.load_state_dict(first.input_layernorm.state_dict())
    layer.mlp_norm.load_state_dict(first.post_attention_layernorm.state_dict())
    layer.cross_q.load_state_dict(last.self_attn.q_proj.state_dict())
    torch.nn.init.zeros_(layer.cross_o.weight)
    layer.embed_tokens.requires_grad_(False)
    return layer


def estimates(layer: GlideLayer, batch: Batch, phase: int) -> Tensor:
    """(B, L, H) of the final states, each token seeing the target's keys of the blocks before its own."""
    keys = unpacked(batch.inputs, layer.config.num_key_value_heads)
    mask = block_mask(batch.ids.shape[1], layer.config.block_size, phase)
    found: Tensor = layer(batch.ids, keys, cross_mask=mask)[0]
    return found


def solve_projection(layer: GlideLayer, batches: Iterator[Batch], rows: int) -> None:
    """Set the projection to the ridge regression of final states on what it is given, over ``rows`` rows."""
    layer.projection.weight.data.copy_(torch.eye(layer.projection.in_features))
    pairs = ((estimates(layer, batch, 0)[batch.mask], batch.final[batch.mask]) for batch in batches)
    layer.projection.weight.data.copy_(ridge(pairs, rows))


@torch.no_grad()
def agreement(layer: GlideLayer, rows: list[dict[str, Any]], head: Tensor) -> list[float]:
    """Share of answer positions where drafter and target prefer the same token, by tokens from the newest
    key it sees: 1, 2, ... ``block_size``."""
    block = layer.config.block_size
    hits: list[list[Tensor]] = [[] for _ in range(block)]
    for row in rows:
        batch = collate([row])
        for phase in range(block):
            found = agreeing(estimates(layer, batch, phase)[batch.mask], batch.final[batch.mask], head)
            at = (batch.mask[0].nonzero().flatten() + phase) % block
            for gap in range(block):
                hits[gap].append(found[at == gap])
    return [round(torch.cat(found).float().mean().item(), 4) for found in hits]


def train(
    target: Any, states: Sequence[Path], out: Path, recipe: Recipe, *, start_from: Path | None = None
) -> None:
    """Train and write ``out``, which ``GlideLayer.trained`` reads, every few minutes.

    Args:
        target: the LlamaForCausalLM that made the states.
        states: folders written by ``store_keys``.
        start_from: a file to go on from.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    torch.manual_seed(recipe.seed)
    rows, held = load_states(*states)
    head = target.get_input_embeddings().weight.detach().float()
    layer, batches = new_layer(target), endless(rows, recipe.tokens, recipe.seed)
    if start_from:
        layer.load(start_from, target)
    else:
        solve_projection(layer, batches, RIDGE_ROWS)
        layer.vocab_ids = frequent(rows, recipe)[0]
    reduced = head[layer.vocab_ids]

    def loss(batch: Batch) -> Tensor:
        phase = int(torch.randint(layer.config.block_size, (), generator=generator))
        found = estimates(layer, batch, phase)
        return distance(found[batch.mask], batch.final[batch.mask], reduced, recipe)

    fit(
        layer,
        batches,
        loss,
        recipe,
        save=lambda: layer.save(out, target.config.gguf_sha256, recipe=str(recipe)),
        score=lambda texts: agreement(layer, texts, head),
        texts=(rows, held),
    )
