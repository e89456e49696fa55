"""Distil the chain drafter: the target's first layers as they are, two trained ones on top, a projection.

It starts as an early exit, not from scratch: the trained layers are copies of the target's next ones, and
the projection from there to the target's final states is solved for by ridge regression, so the first step
agrees with the target on one token in four. The loss is cross-entropy within a reduced vocabulary (``E_R h``,
E_R the embedding's rows: most of a step's cost otherwise) and the final states' error.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..hosts.chain_draft import read_draft, save_draft
from ..hosts.draft_files import wrong_file
from .batches import Batch, collate, endless, load_states
from .distil import Recipe, agreeing, distance, fit, frequent, ridge

__all__ = ["ChainDraft", "agreement", "train"]

RIDGE_ROWS = 25_000  # positions that the first projection is solved on


class ChainDraft(nn.Module):
    """The trained part: ``layers`` on the borrowed layers' output, the final norm, the projection.

    Args:
        target: a LlamaForCausalLM. borrowed: its layers used as they are. trained: layers copied after those.
    """

    def __init__(self, target: Any, *, borrowed: int, trained: int) -> None:
        super().__init__()
        size, body = target.config.hidden_size, target.model
        self.layers = nn.ModuleList(copy.deepcopy(body.layers[borrowed : borrowed + trained]))
        self.norm = nn.Parameter(torch.ones(size))
        self.projection = nn.Parameter(torch.eye(size))
        self.rotary = copy.deepcopy(body.rotary_emb)
        self.epsilon: float = target.config.rms_norm_eps
        self.borrowed = borrowed

    def features(self, inputs: Tensor) -> Tensor:
        """(B, L, H) outputs of the borrowed layers -> (B, L, H) normed states, not yet projected."""
        positions = torch.arange(inputs.shape[1], device=inputs.device)[None]
        rotary = self.rotary(inputs, positions)
        for layer in self.layers:
            output = layer(inputs, attention_mask=None, position_ids=positions, position_embeddings=rotary)
            inputs = output[0] if isinstance(output, tuple) else output
        normed: Tensor = nn.functional.rms_norm(inputs, inputs.shape[-1:], self.norm, self.epsilon)
        return normed

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, L, H) -> (B, L, H): an estimate of the target's final states."""
        return self.features(inputs) @ self.projection.T

    def solve_projection(self, batches: Iterator[Batch], rows: int) -> None:
        """Set the projection to the ridge regression of final states on features over ``rows`` positions."""
        pairs = ((self.features(batch.inputs)[batch.mask], batch.final[batch.mask]) for batch in batches)
        self.projection.data.copy_(ridge(pairs, rows))

    def stored(self) -> dict[str, Tensor]:
        """The trained tensors by their names in the shipped form (``hosts/chain_draft.py``)."""
        tensors = {"norm.weight": self.norm.data, "projection": self.projection.data}
        for i, layer in enumerate(self.layers, self.borrowed):
            tensors |= {f"layers.{i}.{name}": tensor for name, tensor in layer.state_dict().items()}
        return tensors

    def load(self, path: Path, target: Any) -> None:
        """Take the tensors of a file that ``save`` wrote for the same target and the same layers."""
        tensors, _ = read_draft(path, target)
        stored = self.stored()
        shapes = {name: tuple(tensor.shape) for name, tensor in stored.items()}
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name != "vocab_ids"}
        if shapes != found:
            raise wrong_file(path, str(shapes), str(found))
        for name, tensor in stored.items():
            tensor.copy_(tensors[name])

    def save(self, path: Path, vocab_ids: Tensor, target_sha256: str, **notes: str) -> None:
        """Write the shipped form."""
        tensors, count = {**self.stored(), "vocab_ids": vocab_ids}, self.borrowed + len(self.layers)
        save_draft(path, tensors, num_layers=count, target_sha256=target_sha256, **notes)


@torch.no_grad()
def agreement(draft: ChainDraft, rows: list[dict[str, Any]], head: Tensor) -> dict[float, float]:
    """Share of answer positions where draft and target prefer the same token, by temperature of the text."""
    hits: dict[float, list[Tensor]] = {}
    for row in rows:
        batch = collate([row])
        found = agreeing(draft(batch.inputs)[batch.mask], batch.final[batch.mask], head)
        hits.setdefault(row["temperature"], []).append(found)
    return {t: round(torch.cat(found).float().mean().item(), 4) for t, found in sorted(hits.items())}


def train(
    target: Any,
    states: Sequence[Path],
    out: Path,
    recipe: Recipe,
    *,
    borrowed: int = 2,
    trained: int = 2,
    start_from: Path | None = None,
) -> None:
    """Train on stored states and write ``out``, the file that ``load_draft`` reads, every five minutes.

    Args:
        target: the LlamaForCausalLM that made the states.
        states: folders written by ``store_states`` or ``converse`` with the same ``borrowed``.
        start_from: a drafter of this shape to go on from, instead of the early exit.
    """
    torch.manual_seed(recipe.seed)
    rows, held = load_states(*states)
    head = target.get_input_embeddings().weight.detach().float()
    likely, drawable = frequent(rows, recipe)
    reduced = head[likely]
    draft = ChainDraft(target, borrowed=borrowed, trained=trained)
    batches = endless(rows, recipe.tokens, recipe.seed)
    if start_from:
        draft.load(start_from, target)
    else:
        draft.solve_projection(batches, RIDGE_ROWS)

    def loss(batch: Batch) -> Tensor:
        return distance(draft(batch.inputs)[batch.mask], batch.final[batch.mask], reduced, recipe)

    fit(
        draft,
        batches,
        loss,
        recipe,
        save=lambda: draft.save(out, drawable, target.config.gguf_sha256, recipe=str(recipe)),
        score=lambda texts: agreement(draft, texts, head),
        texts=(rows, held),
    )
