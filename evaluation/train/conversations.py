"""Let the target write whole conversations, questions too, and store what it computed on the way.

Left after the empty header of a user turn, a chat model writes a question of its own (Magpie, Xu et al.,
arXiv 2406.08464): as many kinds of prompt as it knows, none from any set used for measurement. Chunk files
are those of ``states.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .decoder import Decoder

__all__ = ["Limits", "converse"]

TEMPERATURES = (0.0, 0.0, 0.0, 0.7, 1.0)
TOP_P, CANDIDATES = 0.95, 256


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Most tokens of a question, an answer, a conversation; ``second``: share of them with two turns."""

    question: int = 100
    answer: int = 128
    total: int = 320
    second: float = 0.25


class _Template:
    """Ids of the chat template's fixed parts: up to a question, from there to its answer, to the next one."""

    def __init__(self, tokenizer: Any) -> None:
        turns = [{"role": role, "content": "@@"} for role in ("user", "assistant", "user")]
        parts = tokenizer.apply_chat_template(turns, tokenize=False).split("@@")
        ids = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts]
        self.end: int = tokenizer.eos_token_id
        self.start: list[int] = ids[0]
        self.to_answer, self.to_question = ids[1][1:], ids[2][1:]  # without the end mark: it is drawn


class _Row:
    """One conversation being written; ``cursor`` is where the target is in it."""

    def __init__(self, template: _Template, limits: Limits, draw: random.Random) -> None:
        self.template, self.limits = template, limits
        self.ids, self.is_answer = list(template.start), [False] * len(template.start)
        self.temperature = draw.choice(TEMPERATURES)
        self.turns = 2 if draw.random() < limits.second else 1
        self.cursor = len(self.ids) - 1
        self.answering, self.begun = False, len(self.ids)

    def put(self, token: int) -> bool:
        """Append a drawn token, and the template's next part after an end mark; False when that ends it."""
        self.ids.append(token)
        self.is_answer.append(self.answering)
        if token != self.template.end:
            limit = self.limits.answer if self.answering else self.limits.question
            return len(self.ids) - self.begun < limit and len(self.ids) < self.limits.total
        self.turns -= self.answering
        following = self.template.to_question if self.answering else self.template.to_answer
        if not self.turns or len(self.ids) + len(following) >= self.limits.total:
            return False
        self.ids += following
        self.is_answer += [False] * len(following)
        self.answering, self.begun = not self.answering, len(self.ids)
        return True


def converse(
    target: Any,
    tokenizer: Any,
    out: Path,
    *,
    tokens: int,
    borrowed: int,
    seed: int = 0,
    rows: int = 96,
    limits: Limits | None = None,
) -> None:
    """Write chunk files to ``out`` until those of ``seed`` hold ``tokens`` answer tokens.

    Several processes may fill one folder, each with its own seed. A killed run loses its unfinished chunk.

    Args:
        target: a LlamaForCausalLM in float32.
        borrowed: as in ``store_states``.
        rows: conversations written at a time, and held in a chunk.
    """
    out.mkdir(parents=True, exist_ok=True)
    chunks = sorted(out.glob(f"{seed:03d}-*.pt"))
    number, written = len(chunks), sum(int(row["mask"].sum()) for path in chunks for row in torch.load(path))
    draw = random.Random(f"{seed}-{number}")
    torch.manual_seed(draw.getrandbits(32))
    conversations = _write(target, _Template(tokenizer), rows, borrowed, limits or Limits(), draw)
    while written < tokens:
        found = [next(conversations) for _ in range(rows)]
        partial = out / f"{seed:03d}-{number:05d}.partial"
        torch.save(found, partial)
        partial.replace(partial.with_suffix(".pt"))
        number, written = number + 1, written + sum(int(row["mask"].sum()) for row in found)
        print(f"{written} of {tokens} answer tokens of seed {seed} in {out}", flush=True)


def _write(
    target: Any, template: _Template, count: int, borrowed: int, limits: Limits, draw: random.Random
) -> Iterator[dict[str, Any]]:
    """Conversations with at least one answer token, as they are finished, for ever."""
    decoder = Decoder(target, rows=count, length=limits.total, borrowed=borrowed)
    head = target.lm_head.weight.detach()
    # Every row starts alike, so this part of the cache is right whatever conversation a row goes on with.
    for position, token in enumerate(template.start):
        decoder.step(torch.full((count,), token), torch.full((count,), position))
    rows = [_Row(template, limits, draw) for _ in range(count)]
    while True:
        ids = torch.tensor([row.ids[row.cursor] for row in rows])
        final = decoder.step(ids, torch.tensor([row.cursor for row in rows]))
        chosen = _choose(final @ head.T, [row.temperature if row.answering else 1.0 for row in rows])
        for i, row in enumerate(rows):
            row.cursor += 1
            if row.cursor < len(row.ids) or row.put(
                chosen[i]
            ):  # a fixed part is read in before more is drawn
                continue
            rows[i] = _Row(template, limits, draw)
            if any(row.is_answer):
                yield _stored(row, decoder, i)


def _choose(logits: Tensor, temperatures: list[float]) -> list[int]:
    """The next token of each row (rows, V): greedy at temperature 0, else drawn from the top-p nucleus."""
    best, ids = logits.topk(min(CANDIDATES, logits.shape[1]))
    scale = torch.tensor(temperatures)[:, None]
    probabilities = (best / scale.clamp(min=1e-3)).softmax(-1)
    outside = probabilities.cumsum(-1) - probabilities > TOP_P
    drawn = probabilities.masked_fill(outside, 0.0).multinomial(1)
    chosen: list[int] = ids.gather(1, torch.where(scale > 0, drawn, 0))[:, 0].tolist()
    return chosen


def _stored(row: _Row, decoder: Decoder, i: int) -> dict[str, Any]:
    length = len(row.ids) - 1  # the last token was drawn but not read in
    return {
        "ids": torch.tensor(row.ids[:length], dtype=torch.int32),
        "mask": torch.tensor(row.is_answer[1:]),
        "temperature": row.temperature,
        "inputs": decoder.inputs[i, :length].clone(),
        "final": decoder.final[i, :length].clone(),
    }
