"""Recording: the target answers, then the host's draft is asked for a proposal at every position."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import BenchError
from ..hosts.base import Host
from ..prompts import Prompt
from .trace import Recorded, Text, read_trace, write_trace

__all__ = ["record"]


def record(
    host: Host,
    prompts: Sequence[Prompt],
    recorded: Recorded,
    out: Path,
    advance: Callable[[str], None] = lambda task: None,
) -> None:
    """Write a trace of the target's greedy answers to ``out``.

    A recording that was stopped goes on: finished prompts wait in a folder beside ``out``. One that is there
    already is kept.

    Args:
        advance: told the task after each prompt.

    Raises:
        BenchError: the host cannot be recorded, or the folder holds another recording.
    """
    if out.exists() and read_trace(out).recorded == recorded:
        return
    folder = out.with_name(out.name + ".parts")
    folder.mkdir(parents=True, exist_ok=True)
    texts: list[Text] = []
    for number, prompt in enumerate(prompts):
        part = folder / f"{number:05d}.parquet"
        if not part.exists():
            write_trace(part, recorded, _answer(host, prompt, recorded))
        trace = read_trace(part)
        if trace.recorded != recorded or trace.texts[0].question != prompt.id:
            raise BenchError(
                f"{part} belongs to another recording ({_differences(trace.recorded, recorded)}); use "
                f"another --out, or delete {folder}."
            )
        texts += trace.texts
        advance(prompt.category)
    write_trace(out, recorded, texts)
    shutil.rmtree(folder)


def _differences(before: Recorded, now: Recorded) -> str:
    old, new = asdict(before), asdict(now)
    found = [f"{key} was {old[key]}, is {new[key]}" for key in new if old[key] != new[key]]
    return "; ".join(found) or "other prompts"


def _answer(host: Host, prompt: Prompt, recorded: Recorded) -> list[Text]:
    limit, texts = recorded.max_new_tokens, []
    messages: list[dict[str, str]] = []
    for turn, text in enumerate(prompt.turns):
        messages.append({"role": "user", "content": text})
        ids = host.encode(messages)
        # What a last round would have accepted beyond the limit teaches a rule that learns.
        whole: Any = host.generate(
            ids, policy="plain", max_new_tokens=limit + recorded.length, temperature=0.0, seed=0
        ).ids
        answer, beyond = whole[:limit], whole[limit:]
        log = host.record(ids, answer, length=recorded.length, top_k=recorded.top_k, floor=recorded.floor)
        texts.append(Text(prompt.category, prompt.id, turn, len(ids), answer, beyond, limit, log.nodes()))
        messages.append({"role": "assistant", "content": host.decode(answer)})
    return texts
