"""What the target computed on its own text, stored once: its forward costs more than training on it.

A chunk file is a list of dictionaries, one a text of L tokens: ``ids`` (L,) int32, ``mask`` (L,) bool (which
of them an answer's token follows), ``temperature``, ``inputs`` (L, H) bf16: the hidden states the drafter's
first trained layer is given, ``final`` (L, H) bf16: the target's last hidden states, after its final norm.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from .text import Answer

__all__ = ["store_states"]

CHUNK, BATCH = 192, 12


def store_states(target: Any, answers: list[Answer], out: Path, *, borrowed: int) -> None:
    """Write chunk files to ``out``; those of the same answers that are there already are kept.

    Args:
        target: a LlamaForCausalLM.
        borrowed: layers of the target that the drafter uses as they are; ``inputs`` are what they put out.
    """
    out.mkdir(parents=True, exist_ok=True)
    wanted: set[Path] = set()
    for start in range(0, len(answers), CHUNK):
        part = sorted(answers[start : start + CHUNK], key=lambda a: len(a.prompt) + len(a.answer))
        path = out / f"{start:06d}-{_digest(part)}.pt"
        wanted.add(path)
        if path.exists():
            continue
        rows = [
            row for i in range(0, len(part), BATCH) for row in _rows(target, part[i : i + BATCH], borrowed)
        ]
        partial = path.with_suffix(".partial")
        torch.save(rows, partial)
        partial.replace(path)
        print(f"{start + len(part)} of {len(answers)} answers in {out}", flush=True)
    for stale in set(out.glob("*.pt")) - wanted:  # of other answers; an answer must not be there twice
        stale.unlink()


def _digest(part: list[Answer]) -> str:
    return hashlib.sha256(repr([(a.prompt, a.answer) for a in part]).encode()).hexdigest()[:12]


def _rows(target: Any, part: list[Answer], borrowed: int) -> list[dict[str, Any]]:
    texts = [torch.tensor(answer.prompt + answer.answer) for answer in part]
    # Padding is on the right, so a causal mask alone keeps it out of what is read.
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    with torch.inference_mode():
        hidden = target.model(ids, output_hidden_states=True, use_cache=False).hidden_states
    return [
        {
            "ids": text.int(),
            "mask": (at := torch.arange(len(text)) + 1).ge(len(answer.prompt)) & at.lt(len(text)),
            "temperature": answer.temperature,
            "inputs": hidden[borrowed][i, : len(text)].bfloat16().clone(),
            "final": hidden[-1][i, : len(text)].bfloat16().clone(),
        }
        for i, (answer, text) in enumerate(zip(part, texts, strict=True))
    ]
