"""The driver: every policy has a server of its own, and one of them at a time is asked a batch of prompts.

The other servers are idle meanwhile. A batch is answered by all of them back to back, in an order that is
rotated from batch to batch, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ..policy_list import own_rules
from ..prompts import Prompt, digest
from ..records import RunFolder, write_json
from .cells import cells

__all__ = ["Client", "ServeBench", "Settings"]

LEAST_REQUESTS = 4
WARM_UP = 2


class Client(Protocol):
    """Asks one server a batch; see ``vllm_engine.Client.send``."""

    def send(self, server: Any, prompts: Sequence[str], concurrency: int) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is; all of it must stay the same for a run to be continued.

    Attributes:
        engine: its name. versions: of its packages. target, draft: names or folders.
        dtype, device, threads, arguments: of every server.
        prompt_set: its name, as on the command line.
        policies: ``none`` among them, in the order of the report.
        concurrency: clients that ask at once, each number a level.
        repeats: batches at each level.
        max_new_tokens: of a request. drafted: most tokens a round drafts.
    """

    engine: str
    versions: dict[str, str]
    target: str
    draft: str
    dtype: str
    device: str
    threads: int | None
    arguments: str
    prompt_set: str
    policies: tuple[str, ...]
    concurrency: tuple[int, ...]
    repeats: int
    max_new_tokens: int
    drafted: int


class ServeBench:
    """One run in one folder; finds out what is done already.

    Args:
        prompts: at least one; of each the first turn is asked.
        settings: see there.
        out: folder of the run.

    Raises:
        BenchError: see ``RunFolder``.
    """

    def __init__(self, prompts: Sequence[Prompt], settings: Settings, out: Path) -> None:
        self.prompts, self.settings = [prompt.turns[0] for prompt in prompts], settings
        config = asdict(settings) | {
            "policies": list(settings.policies),
            "concurrency": list(settings.concurrency),
            "rules": own_rules(settings.policies),
            "prompts": {"count": len(prompts), "digest": digest(prompts)},
        }
        self.folder = RunFolder(out, config, list(settings.policies))
        plan = [(repeat, level) for repeat in range(settings.repeats) for level in settings.concurrency]
        done = self.folder.done()
        self.todo = [(repeat, level) for repeat, level in plan if _key(level, repeat) not in done]

    @property
    def batches_left(self) -> int:
        """Batches still to be answered, over all policies."""
        return len(self.settings.policies) * len(self.todo)

    def run(
        self, servers: Mapping[str, Any], client: Client, advance: Callable[[str], None] = lambda policy: None
    ) -> None:
        """Answer what is left.

        Args:
            servers: {policy: server}, ready.
            client: asks them.
            advance: told the policy's name after each batch.
        """
        for server in servers.values() if self.todo else ():
            client.send(server, self.prompts[:WARM_UP], WARM_UP)
        policies = self.settings.policies
        for repeat, level in self.todo:
            records, first = {}, repeat + self.settings.concurrency.index(level)
            for k in range(len(policies)):
                policy = policies[(first + k) % len(policies)]
                answered = client.send(servers[policy], self.batch(level, repeat), level)
                records[policy] = self._record(policy, level, repeat) | answered
                advance(policy)
            self.folder.append({policy: records[policy] for policy in policies})

    def batch(self, level: int, repeat: int) -> list[str]:
        """As many prompts as clients, or a few more; each batch goes on where the last of its level ended."""
        size = max(level, LEAST_REQUESTS)
        return [self.prompts[(repeat * size + i) % len(self.prompts)] for i in range(size)]

    def summarize(self) -> dict[str, Any]:
        """Write and return the summary, of all batches that are done."""
        order = [
            _key(level, repeat)
            for level in self.settings.concurrency
            for repeat in range(self.settings.repeats)
        ]
        done = self.folder.done()
        answers = {
            policy: {key: found[key] for key in order if key in done}
            for policy, found in self.folder.answers.items()
        }
        summary = {"schema": 1, "command": "serve"} | asdict(self.settings) | {"cells": cells(answers)}
        write_json(self.folder.path / "summary.json", summary)
        return summary

    def _record(self, policy: str, level: int, repeat: int) -> dict[str, Any]:
        return {
            "question_id": _key(level, repeat),
            "policy": policy,
            "concurrency": level,
            "repeat": repeat,
        }


def _key(level: int, repeat: int) -> str:
    return f"{level}-clients-{repeat}"
