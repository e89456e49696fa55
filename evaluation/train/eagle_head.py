"""Train EAGLE-2's draft layer on stored states, several draft steps deep.

It starts as a linear guess, not from scratch: fc is solved for by ridge regression of the next feature on a
token's embedding and the feature before it, and the layer, a copy of the target's last one, adds nothing yet.
A draft that goes deeper than one token reads its own estimates, so it is trained on them as well: step s
takes the estimates of step s - 1 for its features and sees the keys that it would see when drafting
(EAGLE-3's training-time test, Li et al., arXiv 2503.01840; HASS, arXiv 2408.15766).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..hosts.eagle_layer import EagleLayer
from .batches import Batch, collate, endless, load_states
from .distil import Recipe, agreeing, distance, fit, frequent, ridge

__all__ = ["agreement", "new_layer", "solve_fc", "train", "unroll"]

STEP_WEIGHT = 0.8
RIDGE_ROWS = 25_000  # positions that the first fc is solved on


def new_layer(target: Any) -> EagleLayer:
    """An untrained draft layer that adds nothing to what fc gives; the embedding stays the target's."""
    layer, last = EagleLayer(target), target.model.layers[-1]
    copied = {name: tensor.clone() for name, tensor in last.state_dict().items()}
    layer.layers[0].load_state_dict({k: v for k, v in copied.items() if not k.startswith("input_layernorm")})
    inner: Any = layer.layers[0]
    attention = inner.self_attn
    # A feature is scaled by the final norm, the last layer's input by its own, which EAGLE's layer lacks.
    final = target.model.norm.weight.detach()
    scale = last.input_layernorm.weight.detach() / final / final.square().mean().sqrt()
    with torch.no_grad():
        for project in (attention.q_proj, attention.k_proj, attention.v_proj):
            project.weight.mul_(scale)
        inner.post_attention_layernorm.weight.div_(final)
        attention.o_proj.weight.zero_()
        inner.mlp.down_proj.weight.zero_()
    layer.embed_tokens.requires_grad_(False)
    return layer


def solve_fc(layer: EagleLayer, batches: Iterator[Batch], rows: int) -> None:
    """Set fc to the ridge regression of next features on (embedding, feature) over ``rows`` positions."""
    pairs = (
        (
            torch.cat((layer.embed_tokens(batch.ids[:, 1:]), batch.final[:, :-1]), dim=-1)[batch.mask[:, 1:]],
            batch.final[:, 1:][batch.mask[:, 1:]],
        )
        for batch in batches
    )
    layer.fc.weight.data.copy_(ridge(pairs, rows))


def unroll(layer: EagleLayer, ids: Tensor, final: Tensor, steps: int) -> Iterator[Tensor]:
    """Estimates of ``final[:, 1:]`` by drafts of 1, 2, ... ``steps`` tokens, (B, L - 1, H) each.

    Args:
        ids: (B, L), padded on the right. final: (B, L, H) the target's last hidden states.
    """
    ids, features, length = ids[:, 1:], final[:, :-1], ids.shape[1] - 1
    layer.reset()
    estimates, past = layer(features, ids)
    yield estimates
    own = torch.eye(length)
    for step in range(2, steps + 1):
        # Position i of this step stands for a draft that began step - 1 positions earlier: up to there it
        # sees the first step's keys, which had true features, and one key of each step since.
        diagonals = [own.roll(-back, dims=1).tril(-back) for back in range(step - 2, -1, -1)]
        before = torch.ones(length, length).tril(1 - step)
        layer.tree_mask = torch.cat((before, *diagonals), dim=1)[None, None]
        features = torch.cat((features[:, :1], estimates[:, :-1]), dim=1)
        estimates, past = layer(features, ids, past_key_values=past, position_ids=torch.arange(length))
        yield estimates
    layer.reset()


@torch.no_grad()
def agreement(layer: EagleLayer, rows: list[dict[str, Any]], head: Tensor, steps: int) -> list[float]:
    """Share of answer positions where draft and target prefer the same token, by draft step."""
    hits: list[list[Tensor]] = [[] for _ in range(steps)]
    for row in rows:
        batch = collate([row])
        mask = batch.mask[:, 1:]
        for found, estimates in zip(hits, unroll(layer, batch.ids, batch.final, steps), strict=True):
            found.append(agreeing(estimates[mask], batch.final[:, 1:][mask], head))
    return [round(torch.cat(found).float().mean().item(), 4) for found in hits]


def train(
    target: Any,
    states: Sequence[Path],
    out: Path,
    recipe: Recipe,
    *,
    steps: int = 3,
    start_from: Path | None = None,
) -> None:
    """Train on stored states and write ``out``, which ``EagleLayer.trained`` reads, every five minutes.

    Args:
        target: the LlamaForCausalLM that made the states.
        states: folders written by ``store_states`` or ``converse``.
        steps: draft steps in the loss; each counts 0.8 times the one before.
        start_from: a file to go on from, instead of the linear guess.
    """
    torch.manual_seed(recipe.seed)
    rows, held = load_states(*states)
    head = target.get_input_embeddings().weight.detach().float()
    reduced = head[frequent(rows, recipe)[0]]
    layer = new_layer(target)
    batches = endless(rows, recipe.tokens, recipe.seed)
    if start_from:
        layer.load(start_from, target)
    else:
        solve_fc(layer, batches, RIDGE_ROWS)

    def loss(batch: Batch) -> Tensor:
        mask, theirs = batch.mask[:, 1:], batch.final[:, 1:]
        total = torch.zeros(())
        for step, estimates in enumerate(unroll(layer, batch.ids, batch.final, steps)):
            total = total + STEP_WEIGHT**step * distance(estimates[mask], theirs[mask], reduced, recipe)
        return total

    notes = {"recipe": str(recipe), "steps": str(steps)}
    fit(
        layer,
        batches,
        loss,
        recipe,
        save=lambda: layer.save(out, target.config.gguf_sha256, **notes),
        score=lambda texts: agreement(layer, texts, head, steps),
        texts=(rows, held),
    )
