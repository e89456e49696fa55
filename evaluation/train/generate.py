"""Let the target write: answers to made-up prompts, greedy and sampled, one JSON line each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from .prompts import prompts

__all__ = ["generate"]

TEMPERATURES = (0.0, 0.0, 0.7, 1.0)


def generate(
    target: Any, tokenizer: Any, out: Path, *, count: int, batch: int = 32, limit: int = 320
) -> None:
    """Append answers to ``out`` until it holds ``count``; each batch is written when it is finished.

    Args:
        target: causal language model.
        tokenizer: with a chat template; pads on the left here.
        count: prompts to answer, at most what ``prompts()`` has.
        batch: answers written at a time. limit: most new tokens an answer.
    """
    done = _whole_lines(out)
    todo = prompts()[done:count]
    tokenizer.padding_side = "left"
    for start in range(0, len(todo), batch):
        part = todo[start : start + batch]
        temperature = TEMPERATURES[(done + start) // batch % len(TEMPERATURES)]
        torch.manual_seed(done + start)
        rows = _answers(target, tokenizer, part, temperature, limit)
        with out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        print(f"{done + start + len(part)} of {count} answers in {out}", flush=True)


def _whole_lines(out: Path) -> int:
    """How many answers the file holds; a last line that a killed run left half-written is cut off."""
    content = out.read_bytes() if out.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        out.write_bytes(whole)
    return whole.count(b"\n")


def _answers(
    target: Any, tokenizer: Any, part: list[str], temperature: float, limit: int
) -> list[dict[str, Any]]:
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        for prompt in part
    ]
    inputs = tokenizer(chats, add_special_tokens=False, padding=True, return_tensors="pt")
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
    output = target.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=limit,
        **sampling,
    )
    rows = []
    for prompt, ids in zip(part, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
        stopped = tokenizer.eos_token_id in ids
        ids = ids[: ids.index(tokenizer.eos_token_id)] if stopped else ids
        row = {"prompt": prompt, "temperature": temperature, "response": tokenizer.decode(ids)}
        rows.append({**row, "tokens": len(ids), "finish": "stop" if stopped else "length"})
    return rows
