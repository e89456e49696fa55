"""Distil the chain drafter: the target's first layers as they are, two trained ones on top, a projection.

It starts as an early exit, not from scratch: the trained layers are copies of the target's next ones, and
the projection from there to the target's final states is solved for by ridge regression, so the first step
agrees with the target on one token in four. The loss is the cross-entropy to the target's distribution
within a reduced vocabulary (``E_R h``, E_R the embedding's rows: most of a step's cost otherwise) plus the
relative squared error of the final states.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..hosts.chain_draft import read_draft, save_draft
from .batches import Batch, collate, endless, load_states

__all__ = ["ChainDraft", "Recipe", "agreement", "train"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How long and how hard: ``minutes`` or ``steps``, whichever ends first, at most ``tokens`` padded
    positions a step; ``rate`` is AdamW's highest, the last is 5% of it.

    In the loss are the ``vocabulary`` most frequent tokens, a random ``share`` of the positions, and
    ``state_weight`` times the final states' error. ``ridge_rows``: positions for the first projection.
    """

    minutes: float = 60.0
    steps: int = 1_000_000
    rate: float = 1.2e-3
    tokens: int = 1200
    vocabulary: int = 8192
    state_weight: float = 0.5
    share: float = 0.5
    ridge_rows: int = 25_000
    seed: int = 0


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

    @torch.no_grad()
    def solve_projection(self, batches: Iterator[Batch], rows: int) -> None:
        """Set the projection to the ridge regression of final states on features over ``rows`` positions."""
        size, seen = self.projection.shape[0], 0
        gram, cross = torch.zeros(size, size), torch.zeros(size, size)
        while seen < rows:
            batch = next(batches)
            x, y = self.features(batch.inputs)[batch.mask], batch.final[batch.mask]
            gram, cross, seen = gram + x.T @ x, cross + x.T @ y, seen + len(x)
        ridge = 1e-4 * gram.diagonal().mean() * torch.eye(size)
        self.projection.copy_(torch.linalg.solve(gram + ridge, cross).T)

    def stored(self) -> dict[str, Tensor]:
        """The trained tensors by their names in the shipped form (``hosts/chain_draft.py``)."""
        tensors = {"norm.weight": self.norm.data, "projection": self.projection.data}
        for i, layer in enumerate(self.layers, self.borrowed):
            tensors |= {f"layers.{i}.{name}": tensor for name, tensor in layer.state_dict().items()}
        return tensors

    def load(self, path: Path, target: Any) -> None:
        """Take the tensors of a file that ``save`` wrote for the same target and the same layers."""
        tensors, _ = read_draft(path, target)
        for name, tensor in self.stored().items():
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
        ours, theirs = draft(batch.inputs)[batch.mask] @ head.T, batch.final[batch.mask] @ head.T
        hits.setdefault(row["temperature"], []).append(ours.argmax(-1) == theirs.argmax(-1))
    return {t: round(torch.cat(found).float().mean().item(), 4) for t, found in sorted(hits.items())}


def _loss(draft: ChainDraft, batch: Batch, head: Tensor, recipe: Recipe) -> Tensor:
    ours, theirs = draft(batch.inputs)[batch.mask], batch.final[batch.mask]
    error = ((ours - theirs).square().sum(-1) / theirs.square().sum(-1)).mean()
    drawn = torch.rand(len(ours)).argsort()[: max(1, int(recipe.share * len(ours)))]
    wanted = (theirs[drawn] @ head.T).softmax(-1)
    entropy = -(wanted * (ours[drawn] @ head.T).log_softmax(-1)).sum(-1).mean()
    total: Tensor = recipe.state_weight * error + entropy
    return total


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
    counts = torch.bincount(torch.cat([row["ids"] for row in rows]), minlength=len(head))
    reduced = head[counts.argsort(descending=True, stable=True)[: recipe.vocabulary].sort().values]
    drawable = counts.nonzero().flatten()
    draft = ChainDraft(target, borrowed=borrowed, trained=trained)
    batches = endless(rows, recipe.tokens, recipe.seed)
    if start_from:
        draft.load(start_from, target)
    else:
        draft.solve_projection(batches, recipe.ridge_rows)
    matrices = [p for p in draft.parameters() if p.ndim > 1]
    vectors = [p for p in draft.parameters() if p.ndim == 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01)
    start = written = time.monotonic()
    for step, batch in enumerate(batches):
        done = max((time.monotonic() - start) / 60 / recipe.minutes, step / recipe.steps)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * min(1.0, (step + 1) / 40) * (0.525 + 0.475 * math.cos(math.pi * done))
        optimizer.zero_grad(set_to_none=True)
        _loss(draft, batch, reduced, recipe).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        if time.monotonic() - written > 300:
            written = time.monotonic()
            draft.save(out, drawable, target.config.gguf_sha256)
            print(f"step {step}, {done:.0%}, agreement {agreement(draft, held[:40], head)}", flush=True)
    draft.save(out, drawable, target.config.gguf_sha256, recipe=str(recipe))
    print(f"wrote {out}; agreement on held-out answers {agreement(draft, held, head)}", flush=True)
