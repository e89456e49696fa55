"""Stored states as padded batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BenchError

__all__ = ["Batch", "collate", "endless", "load_states"]

HELD_OUT = 24
_WINDOW = 256


@dataclass(frozen=True)
class Batch:
    """``ids`` (B, L) int64; ``inputs``, ``final`` (B, L, H) float32; ``mask`` (B, L) bool: positions that
    an answer token follows."""

    ids: Tensor
    inputs: Tensor
    final: Tensor
    mask: Tensor


def load_states(*folders: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to train on and rows held out (every 24th of each chunk).

    Raises:
        BenchError: a folder holds no chunk.
    """
    train: list[dict[str, Any]] = []
    held: list[dict[str, Any]] = []
    for folder in folders:
        paths = sorted(folder.glob("*.pt"))
        if not paths:
            raise BenchError(
                f"expected stored states in {folder}, found none; write them first with: train converse, "
                "or train states."
            )
        for path in paths:
            for i, row in enumerate(torch.load(path)):
                (train if i % HELD_OUT else held).append(row)
    return train, held


def collate(rows: list[dict[str, Any]]) -> Batch:
    """Pad on the right; no padding is in the mask."""
    ids, inputs, final, mask = (
        torch.nn.utils.rnn.pad_sequence([row[key] for row in rows], batch_first=True)
        for key in ("ids", "inputs", "final", "mask")
    )
    return Batch(ids.long(), inputs.float(), final.float(), mask)


def endless(rows: list[dict[str, Any]], tokens: int, seed: int) -> Iterator[Batch]:
    """Batches of at most ``tokens`` padded positions for ever: rows of like length, shuffled each epoch."""
    shuffle = random.Random(seed).shuffle
    while True:
        order = rows[:]
        shuffle(order)
        for start in range(0, len(order), _WINDOW):
            packs: list[list[dict[str, Any]]] = [[]]
            for row in sorted(order[start : start + _WINDOW], key=lambda row: len(row["ids"])):
                if packs[-1] and len(row["ids"]) * (len(packs[-1]) + 1) > tokens:
                    packs.append([])
                packs[-1].append(row)
            shuffle(packs)
            yield from map(collate, packs)
