"""Recording: the target answers, then the host's draft is asked for a proposal at every position."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from ..errors import BenchError
from ..hosts.base import Host
from ..prompts import Prompt
from .nodes import Nodes
from .trace import Recorded, Text, read_trace, write_trace

__all__ = ["record"]


def record(
    host: Host,
    prompts: Sequence[Prompt],
    recorded: Recorded,
    out: Path,
    advance: Callable[[str], None] = lambda task: None,
) -> None:
    """Write a trace of the target's answers to ``out``: greedy ones, or sampled at ``recorded.temperature``.

    A recording that was stopped goes on: finished prompts wait in a folder beside ``out``. One that is there
    already is kept.

    Args:
        advance: told the task after each prompt.

    Raises:
        BenchError: the host cannot be recorded, or not at a temperature, or the folder holds another
            recording.
    """
    _require_tokens_decide(host, recorded)
    if out.exists() and read_trace(out).recorded == recorded:
        return
    folder = out.with_name(out.name + ".parts")
    folder.mkdir(parents=True, exist_ok=True)
    texts: list[Text] = []
    for number, prompt in enumerate(prompts):
        part = folder / f"{number:05d}.parquet"
        if not part.exists():
            write_trace(part, recorded, _answer(host, number, prompt, recorded))
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


def _require_tokens_decide(host: Host, recorded: Recorded) -> None:
    if recorded.temperature and not host.tokens_decide:
        raise BenchError(
            f"expected --temperature 0 to record {host.name}, found {recorded.temperature}: what it drafts "
            "depends on where its round began, and where rounds begin is chance; use --host transformers."
        )


def _differences(before: Recorded, now: Recorded) -> str:
    old, new = asdict(before), asdict(now)
    found = [f"{key} was {old[key]}, is {new[key]}" for key in new if old[key] != new[key]]
    return "; ".join(found) or "other prompts"


def _answer(host: Host, number: int, prompt: Prompt, recorded: Recorded) -> list[Text]:
    limit, texts = recorded.max_new_tokens, list[Text]()
    messages: list[dict[str, str]] = []
    for turn, text in enumerate(prompt.turns):
        messages.append({"role": "user", "content": text})
        ids = host.encode(messages)
        note = _sampled if recorded.temperature else _greedy
        answer, beyond, nodes = note(host, ids, recorded, recorded.seed + 1009 * number + turn)
        texts.append(Text(prompt.category, prompt.id, turn, len(ids), answer, beyond, limit, nodes))
        messages.append({"role": "assistant", "content": host.decode(answer)})
    return texts


def _greedy(
    host: Host, prompt: list[int], recorded: Recorded, seed: int
) -> tuple[list[int], list[int], Nodes]:
    """An answer, what would follow it and what is drafted."""
    limit, length = recorded.max_new_tokens, recorded.length
    # What a last round would have accepted beyond the limit teaches a rule that learns.
    whole = host.generate(
        prompt, policy="plain", max_new_tokens=limit + length, temperature=0.0, seed=seed
    ).ids
    answer, beyond = whole[:limit], whole[limit:]
    log = host.record(prompt, answer, length=length, top_k=recorded.top_k, floor=recorded.floor)
    return answer, beyond, log.nodes()


def _sampled(
    host: Host, prompt: list[int], recorded: Recorded, seed: int
) -> tuple[list[int], list[int], Nodes]:
    limit, temperature = recorded.max_new_tokens, recorded.temperature
    run = host.generate(prompt, policy="plain", max_new_tokens=limit, temperature=temperature, seed=seed)
    nodes = host.record_sampled(prompt, run.ids, length=recorded.length, temperature=temperature, seed=seed)
    return run.ids, [], nodes
