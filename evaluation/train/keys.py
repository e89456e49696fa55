"""The target's last keys and values on stored texts, which GliDe's drafter attends to.

Chunk files as ``store_states`` writes them, with ``inputs`` (L, 2 * key heads * head size) bf16: rotated
keys, then values.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BenchError
from ..hosts.llama_attention import KeysValues
from ..hosts.tree_target import TreeTarget

__all__ = ["packed", "store_keys", "unpacked"]

BATCH = 12


def store_keys(target: Any, states: Sequence[Path], out: Path) -> None:
    """Write to ``out`` one chunk for each in the folders ``states``; those that are there are kept.

    Raises:
        BenchError: two folders of one name, whose chunks would take each other's.
    """
    names = [folder.name for folder in states]
    if len(set(names)) < len(names):
        raise BenchError(
            f"expected folders of different names, found {', '.join(map(str, states))}; rename one."
        )
    out.mkdir(parents=True, exist_ok=True)
    for path in (path for folder in states for path in sorted(folder.glob("*.pt"))):
        goal = out / f"{path.parent.name}-{path.name}"
        if goal.exists():
            continue
        rows = sorted(torch.load(path), key=lambda row: len(row["ids"]))
        for start in range(0, len(rows), BATCH):
            _add_keys(target, rows[start : start + BATCH])
        partial = goal.with_suffix(".partial")
        torch.save(rows, partial)
        partial.replace(goal)
        print(f"{goal}: {len(rows)} texts", flush=True)


@torch.inference_mode()
def _add_keys(target: Any, rows: list[dict[str, Any]]) -> None:
    ids = torch.nn.utils.rnn.pad_sequence([row["ids"].long() for row in rows], batch_first=True)
    sequences = TreeTarget(target)
    sequences.read(ids)
    both = packed(sequences.last_keys)
    for row, found in zip(rows, both, strict=True):
        row["inputs"] = found[: len(row["ids"])].bfloat16().clone()


def packed(keys: KeysValues) -> Tensor:
    """(B, key heads, L, head size) keys and values -> (B, L, 2 * key heads * head size)."""
    return torch.stack(keys, dim=1).permute(0, 3, 1, 2, 4).flatten(2)


def unpacked(both: Tensor, heads: int) -> KeysValues:
    """The inverse of ``packed``."""
    batch, length, _ = both.shape
    keys, values = both.view(batch, length, 2, heads, -1).permute(2, 0, 3, 1, 4)
    return keys, values
