"""Prompt sets: the built-in one, public ones by name, and files in FastChat's question format."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import datasets
from .errors import BenchError, did_you_mean

__all__ = ["CATEGORIES", "Prompt", "digest", "load", "read"]

CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
BUILTIN = Path(__file__).parent / "builtin.jsonl"


@dataclass(frozen=True)
class Prompt:
    """One conversation: what the user says, turn by turn.

    Attributes:
        id: as in the file; unique in a set.
        category: the task it counts under.
        turns: at least one.
    """

    id: int | str
    category: str
    turns: tuple[str, ...]


def load(
    name: str, *, data: Path | None = None, limit: int | None = None, max_turns: int | None = None
) -> list[Prompt]:
    """A prompt set, or several.

    Args:
        name: ``builtin``, a key of ``datasets.SOURCES``, or the path of a ``.jsonl`` file; several with
            commas between them, each a task of its own (``spec_bench`` keeps its six).
        data: folder to read public sets from instead of the network.
        limit: keep so many prompts, spread evenly over the categories.
        max_turns: keep so many turns of each.

    Raises:
        BenchError: unknown, missing, not downloadable or malformed.
    """
    names = [name] if Path(name).is_file() else name.split(",")
    prompts = _set(name, data) if len(names) == 1 else [p for one in names for p in _task(one, data)]
    chosen = prompts if limit is None else _spread(prompts, limit)
    return [Prompt(p.id, p.category, p.turns[:max_turns]) for p in chosen]


def _task(name: str, data: Path | None) -> list[Prompt]:
    """A set among others."""
    own = name == "spec_bench"
    task = Path(name).stem
    return [Prompt(f"{task}-{p.id}", p.category if own else task, p.turns) for p in _set(name, data)]


def _set(name: str, data: Path | None) -> list[Prompt]:
    known = ["builtin", *datasets.SOURCES]
    if name == "builtin":
        paths = [BUILTIN]
    elif name in datasets.SOURCES:
        paths = datasets.local_files(name, data) if data else [datasets.fetch(name)]
    elif name.endswith(".jsonl") or Path(name).is_file():
        paths = [Path(name)]
    else:
        raise BenchError(
            f"unknown prompt set {name!r}{did_you_mean(name, known)}; expected one of {', '.join(known)}, "
            "or the path of a .jsonl file in FastChat's question format."
        )
    prompts = [prompt for path in paths for prompt in read(path, unnamed=Path(name).stem)]
    if name == "spec_bench":  # its first task is MT-Bench as a whole, as its authors report it
        prompts = [
            Prompt(p.id, "mt_bench" if p.category in CATEGORIES else p.category, p.turns) for p in prompts
        ]
    return prompts


def read(path: Path, *, unnamed: str) -> list[Prompt]:
    """Prompts of one file, one JSON object a line with ``question_id``, ``category`` and ``turns``.

    Args:
        path: the file.
        unnamed: category of the lines that have none.

    Raises:
        BenchError: with the number of the line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines also splits at U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"expected a prompt file at {path}, could not read it: {error}.") from error
    prompts: dict[int | str, Prompt] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            prompt = _parse(line, f"{path}, line {number}", unnamed)
            if prompt.id in prompts:
                raise BenchError(
                    f"{path}, line {number}: question_id {prompt.id!r} was used before; number it anew."
                )
            prompts[prompt.id] = prompt
    if not prompts:
        raise BenchError(f"expected at least one prompt in {path}, found none.")
    return list(prompts.values())


def digest(prompts: Iterable[Prompt]) -> str:
    """Sixteen hexadecimal digits that change with any word, category or the order of the prompts."""
    content = json.dumps([[p.id, p.category, p.turns] for p in prompts])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _parse(line: str, where: str, unnamed: str) -> Prompt:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise BenchError(f"{where}: expected one JSON object, found something else ({error}).") from error
    if not isinstance(row, dict):
        raise BenchError(f"{where}: expected a JSON object, found {type(row).__name__}.")
    if not isinstance(row.get("question_id"), (int, str)):
        raise BenchError(
            f"{where}: expected a question_id, a number or a string, found {row.get('question_id')!r}."
        )
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise BenchError(
            f"{where}: expected turns, a list of one or more strings, found {str(turns)[:60]!r}."
        )
    category = str(row.get("category") or unnamed)
    if category == "overall":
        raise BenchError(f"{where}: the category 'overall' is the summary's own word; give it another name.")
    return Prompt(row["question_id"], category, tuple(turns))


def _spread(prompts: list[Prompt], limit: int) -> list[Prompt]:
    """The first of every category, then the second of every category, and so on; in the file's order."""
    seen: dict[str, int] = defaultdict(int)
    ranked = []
    for index, prompt in enumerate(prompts):
        ranked.append((seen[prompt.category], index))
        seen[prompt.category] += 1
    return [prompts[index] for index in sorted(index for _, index in sorted(ranked)[:limit])]
