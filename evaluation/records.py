"""A run on disk: its configuration (run.json) and its answers (one JSON line each, one file a policy).

A run that was killed goes on from here. Complete lines are kept and a torn last line is dropped. A
prompt counts only with the answers of all policies, which were timed back to back; one that was under
way is run again for all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from .errors import BenchError

__all__ = ["Record", "RunFolder", "answer_file", "write_json"]

Record = dict[str, Any]


class RunFolder:
    """The output folder of one run.

    Args:
        path: created if missing.
        config: everything that must stay the same for answers to belong together; JSON values.
        policies: in the order of the report.

    Raises:
        BenchError: not writable, or it holds a run with another configuration.
    """

    def __init__(self, path: Path, config: dict[str, Any], policies: list[str]) -> None:
        self.path = path
        self._files = {policy: path / "answers" / answer_file(policy) for policy in policies}
        try:
            (path / "answers").mkdir(parents=True, exist_ok=True)
            self._check(config)
            write_json(path / "run.json", config)
            self.answers = self._recover()
        except OSError as error:
            raise BenchError(
                f"expected a folder to write to at {path}, found: {error}; choose another --out."
            ) from error

    def append(self, records: dict[str, Record]) -> None:
        """Add one prompt's answers, {policy: record}; they are out of this process when it returns."""
        for policy, record in records.items():
            with self._files[policy].open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        for policy, record in records.items():
            self.answers[policy][record["question_id"]] = record

    def done(self) -> set[int | str]:
        """Ids of the prompts that every policy has answered."""
        return set.intersection(*(set(answers) for answers in self.answers.values()))

    def _check(self, config: dict[str, Any]) -> None:
        file = self.path / "run.json"
        if not file.exists():
            return
        try:
            before = _flat(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, AttributeError) as error:
            raise BenchError(
                f"{file} should hold a run's configuration, found: {error}; choose another --out."
            ) from error
        now = _flat(config)
        differing = [
            f"{key} was {before.get(key, 'absent')}, is {now.get(key, 'absent')}"
            for key in [*now, *(key for key in before if key not in now)]
            if before.get(key) != now.get(key)
        ]
        if differing:
            raise BenchError(
                f"{self.path} holds a run with another configuration ({'; '.join(differing)}), and their "
                "answers must not be mixed; use another --out, or repeat the earlier settings to go on, "
                "or delete the folder."
            )

    def _recover(self) -> dict[str, dict[int | str, Record]]:
        found = {policy: _read(file) for policy, file in self._files.items()}
        whole = set.intersection(*(set(answers) for answers in found.values()))
        for policy, file in self._files.items():
            found[policy] = {key: record for key, record in found[policy].items() if key in whole}
            _replace(file, "".join(json.dumps(record) + "\n" for record in found[policy].values()))
        return found


def answer_file(policy: str) -> str:
    """File name of a policy's answers: its own name where that is a safe one; no two policies share one."""
    safe = re.sub(r"[^A-Za-z0-9._=,+-]", "_", policy)
    # Of this form only the first "_" can stand for a ":", and no file system takes two of them for one.
    if not re.fullmatch(r"[a-z0-9]+(:[a-z0-9._=,+-]*)?", policy):
        safe += f"-{hashlib.sha256(policy.encode()).hexdigest()[:6]}"
    return f"{safe}.jsonl"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one step: a reader finds the old one or the new one, never a half."""
    _replace(path, json.dumps(value, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _read(file: Path) -> dict[int | str, Record]:
    if not file.exists():
        return {}
    records: dict[int | str, Record] = {}
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn, or nothing
        try:
            record = json.loads(line)
            records[record["question_id"]] = record
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(
                f"{file}, line {number}: expected an answer of this benchmark, found something else "
                f"({error}); delete that line to have it run again."
            ) from error
    return records


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"versions": {"torch": ..}} -> {"versions.torch": ..}: so that a message can name what differs."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {prefix + key: item}
    return flat
