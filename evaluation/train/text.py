"""The target's own text as token ids: one JSON line an answer, filtered and tokenised.

Lines hold ``prompt``, ``response``, ``temperature`` and ``finish`` ("stop" or "length"); more is ignored.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BenchError

__all__ = ["Answer", "read_answers"]

MAX_TOKENS = 700
LOOP_TOKENS = 140


@dataclass(frozen=True)
class Answer:
    """Ids of prompt (chat template applied) and answer; the temperature it was drawn at."""

    prompt: list[int]
    answer: list[int]
    temperature: float


def read_answers(paths: Iterable[Path], tokenizer: Any, seed: int = 0) -> list[Answer]:
    """Usable answers, shuffled, greedy ones first.

    An answer that loops (fewer than half of its four-word runs are distinct) is cut to its first 140
    tokens: greedy runs of this target do loop, so a drafter must see loops, but not learn little else.

    Raises:
        BenchError: a line that is not a JSON object with the fields above.
    """
    found = []
    for path in paths:
        for number, line in enumerate(path.read_text().split("\n")[:-1], 1):
            try:
                row = json.loads(line)
                answer = _encode(row, tokenizer)
            except (ValueError, TypeError, KeyError) as error:
                raise BenchError(
                    f"expected an answer (prompt, response, temperature, finish) in {path}, line {number}, "
                    f"found {line[:60]!r} ({error}); remove the line or write the file with: train generate."
                ) from error
            if len(answer.answer) >= 8 and len(answer.prompt) + len(answer.answer) <= MAX_TOKENS:
                found.append(answer)
    random.Random(seed).shuffle(found)
    return sorted(found, key=lambda answer: answer.temperature)


def _encode(row: dict[str, Any], tokenizer: Any) -> Answer:
    messages = [{"role": "user", "content": row["prompt"]}]
    chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(chat, add_special_tokens=False)["input_ids"]
    answer = tokenizer(row["response"], add_special_tokens=False)["input_ids"]
    if row["finish"] == "stop":
        answer = [*answer, tokenizer.eos_token_id]
    if _loops(row["response"]):
        answer = answer[:LOOP_TOKENS]
    return Answer(prompt, answer, float(row["temperature"]))


def _loops(text: str) -> bool:
    words = text.split()
    runs = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return len(set(runs)) < 0.5 * len(runs)
