"""The driver: every policy on every prompt, back to back, counted and timed the same way.

For each turn all policies run one after another, in an order that is rotated from prompt to prompt, so
that a machine that slows down slows all of them. From the second turn on, all see the same history: the
answers of ``plain``. Outputs that differ (in bfloat16, or sampled) would otherwise give the two sides of
a ratio different inputs.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import metrics
from .hosts.base import Generation, Host
from .policy_list import own_rules
from .prompts import Prompt, digest
from .records import Record, RunFolder, write_json

__all__ = ["Bench", "Settings"]

WARM_UP_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is, apart from host and prompts.

    Attributes:
        prompt_set: its name, as on the command line.
        policies: names, ``plain`` among them, in the order of the report.
        baseline: one of them.
        max_new_tokens: a turn. temperature: 0 is greedy. seed: of sampling and of the bootstrap.
        threads: of the CPU.
    """

    prompt_set: str
    policies: tuple[str, ...]
    baseline: str
    max_new_tokens: int
    temperature: float
    seed: int
    threads: int


class Bench:
    """One run in one folder; finds out what is done already.

    Args:
        host: loaded.
        prompts: at least one.
        settings: see there.
        out: folder of the run.

    Raises:
        BenchError: see ``RunFolder``.
    """

    def __init__(self, host: Host, prompts: list[Prompt], settings: Settings, out: Path) -> None:
        self.host, self.prompts, self.settings = host, prompts, settings
        for policy in settings.policies:
            host.check(policy)
        self.config = self._config()
        self.folder = RunFolder(out, self.config, list(settings.policies))
        self.todo = [(i, p) for i, p in enumerate(prompts) if p.id not in self.folder.done()]

    @property
    def turns_left(self) -> int:
        """Turns still to be generated, over all policies."""
        return len(self.settings.policies) * sum(len(prompt.turns) for _, prompt in self.todo)

    def run(self, advance: Callable[[str], None] = lambda policy: None) -> dict[str, Any]:
        """Answer what is left, then write and return the summary.

        Args:
            advance: told the policy's name after each turn.
        """
        if self.todo:
            self._warm_up(self.todo[0][1])
        for index, prompt in self.todo:
            self.folder.append(self._answer(index, prompt, advance))
        return self._summarize()

    def _warm_up(self, prompt: Prompt) -> None:
        ids = self.host.encode([{"role": "user", "content": prompt.turns[0]}])
        for policy in self.settings.policies:
            self._generate(policy, ids, 0, min(WARM_UP_TOKENS, self.settings.max_new_tokens))
        self.host.forget()  # what rules learnt from it

    def _generate(self, policy: str, ids: list[int], seed: int, limit: int) -> Generation:
        return self.host.generate(
            ids, policy=policy, max_new_tokens=limit, temperature=self.settings.temperature, seed=seed
        )

    def _answer(self, index: int, prompt: Prompt, advance: Callable[[str], None]) -> dict[str, Record]:
        policies = self.settings.policies
        runs: dict[str, list[Generation]] = {policy: [] for policy in policies}
        inputs: list[list[int]] = []
        messages: list[dict[str, str]] = []
        for turn, text in enumerate(prompt.turns):
            messages.append({"role": "user", "content": text})
            inputs.append(self.host.encode(messages))
            for k in range(len(policies)):
                policy = policies[(index + turn + k) % len(policies)]
                seed = self.settings.seed + 1009 * index + turn
                runs[policy].append(self._generate(policy, inputs[turn], seed, self.settings.max_new_tokens))
                advance(policy)
            messages.append({"role": "assistant", "content": self.host.decode(runs["plain"][turn].ids)})
        records = {policy: self._record(policy, prompt, runs[policy]) for policy in policies}
        for policy in policies:
            if self.settings.temperature == 0 and policy != "plain":
                records[policy]["difference"] = self._difference(inputs, runs[policy], runs["plain"])
        plain = zip(inputs, runs["plain"], strict=True)
        records["plain"]["probe"] = [self.host.probe(ids, generation.ids) for ids, generation in plain]
        return records

    def _record(self, policy: str, prompt: Prompt, runs: list[Generation]) -> Record:
        per_turn = {
            "wall_time": [run.seconds for run in runs],
            "new_tokens": [len(run.ids) for run in runs],
            "accept_lengths": [run.accept_lengths for run in runs],
        }
        # Spec-Bench's scripts look for these inside the choice, and for the accept lengths in one flat list.
        choice = per_turn | {
            "accept_lengths": [length for run in runs for length in run.accept_lengths],
            "decoding_steps": [len(run.accept_lengths) for run in runs],
        }
        return {
            "question_id": prompt.id,
            "answer_id": uuid.uuid4().hex,
            "model_id": f"{self.host.target_name}-{policy}",
            "policy": policy,
            "category": prompt.category,
            "choices": [{"index": 0, "turns": [self.host.decode(run.ids) for run in runs], **choice}],
            "tstamp": time.time(),
            **per_turn,
            "draft_lengths": [run.draft_lengths for run in runs],
            "accepted": [run.accepted for run in runs],
            "draft_steps": [run.draft_steps for run in runs],
            "target_forwards": [run.target_forwards for run in runs],
            "nodes_verified": [run.nodes_verified for run in runs],
            "ids": [run.ids for run in runs],
        }

    def _difference(
        self, inputs: list[list[int]], ours: list[Generation], plain: list[Generation]
    ) -> dict[str, Any] | None:
        """Where a greedy answer first leaves plain's, and how near a tie it was there in both runs."""
        for turn, (ids, a, b) in enumerate(zip(inputs, ours, plain, strict=True)):
            if a.ids == b.ids:
                continue
            shared = min(len(a.ids), len(b.ids))
            at = next((i for i in range(shared) if a.ids[i] != b.ids[i]), shared)
            gap, gap_plain = (
                self.host.gap(ids, run.ids, at, run.accept_lengths, run.draft_lengths) for run in (a, b)
            )
            return {"turn": turn, "position": at, "gap": gap, "gap_plain": gap_plain}
        return None

    def _config(self) -> dict[str, Any]:
        host, settings = self.host, self.settings
        return {
            "host": host.name,
            "target": host.target_name,
            "draft": host.draft_name,
            "dtype": host.dtype,
            "device": host.device,
            "versions": host.versions(),
            "policies": list(settings.policies),
            "rules": own_rules(settings.policies),
            "prompts": {
                "set": settings.prompt_set,
                "count": len(self.prompts),
                "digest": digest(self.prompts),
            },
            "max_new_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed,
            "threads": settings.threads,
        }

    def _summarize(self) -> dict[str, Any]:
        settings = self.settings
        keys = ("host", "target", "draft", "dtype", "device", "versions", "seed", "temperature")
        summary = {"schema": 1} | {key: self.config[key] for key in keys} | {"baseline": settings.baseline}
        order = [prompt.id for prompt in self.prompts]
        answers = {p: {key: found[key] for key in order} for p, found in self.folder.answers.items()}
        summary["cells"] = metrics.cells(
            answers, baseline=settings.baseline, seed=settings.seed, greedy=settings.temperature == 0
        )
        write_json(self.folder.path / "summary.json", summary)
        return summary
