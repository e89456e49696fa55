"""From counts to seconds, by what forwards cost on one machine."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BenchError
from ..records import write_json
from .rounds import Turn

__all__ = ["CostModel", "read_costs", "write_costs"]

SCHEMA = 1


@dataclass(frozen=True)
class CostModel:
    """Seconds of a host's parts on one machine; between measured sizes, interpolated.

    Attributes:
        target: {tokens of a forward of the target: seconds}. draft: {rows of a draft step: seconds}.
        prompt: (fixed, a token): the target's forward over a prompt. draft_prompt: the draft's.
        per_round, per_step: what a round and a draft step take beside their forwards, the policy included.
        per_token: what the target alone takes for a token beside its forward.
        about: the host and machine it was measured on.
    """

    target: dict[int, float]
    draft: dict[int, float]
    prompt: tuple[float, float]
    per_round: float
    per_step: float
    per_token: float
    about: dict[str, Any]
    draft_prompt: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        # More never costs less: medians of few runs may say so, and a rule would then beat the oracle.
        for name in ("target", "draft"):
            table = sorted(getattr(self, name).items())
            rising = itertools.accumulate((seconds for _, seconds in table), max)
            object.__setattr__(self, name, dict(zip((size for size, _ in table), rising, strict=True)))

    def verification(self, nodes: int) -> float:
        """A forward of the target over ``nodes`` drafted tokens and the one before them."""
        return _between(self.target, nodes + 1)

    def step(self, rows: int = 1) -> float:
        """A draft step."""
        return _between(self.draft, rows) + self.per_step

    def round(self, nodes: int) -> float:
        """A round that verifies ``nodes``, its draft steps left out."""
        return self.verification(nodes) + self.per_round

    def start(self, prompt_length: int) -> float:
        """The forward over a prompt."""
        return self.prompt[0] + self.prompt[1] * prompt_length

    def plain(self, prompt_length: int, tokens: int) -> float:
        """The target alone."""
        each = self.verification(0) + self.per_token
        return self.start(prompt_length) - self.verification(0) + tokens * each

    def seconds(self, done: Turn, prompt_length: int) -> float:
        """A replayed turn; the first round's forward is the one over the prompt."""
        rounds = sum(n * self.round(nodes) for nodes, n in done.target.items())
        steps = sum(n * self.step(rows) for rows, n in done.draft.items())
        fixed, each = self.draft_prompt  # of the first draft step, which reads the prompt
        reading = done.reads * max(0.0, fixed + each * prompt_length - _between(self.draft, 1))
        return self.start(prompt_length) - self.verification(0) + reading + rounds + steps


def _between(table: Mapping[int, float], size: int) -> float:
    """Linear between the sizes of a table, and beyond its ends along the outermost pieces."""
    sizes = sorted(table)
    if len(sizes) == 1 or sizes[0] <= size <= sizes[-1]:
        return float(np.interp(size, sizes, [table[s] for s in sizes]))
    a, b = (sizes[0], sizes[1]) if size < sizes[0] else (sizes[-2], sizes[-1])
    slope = max(0.0, (table[b] - table[a]) / (b - a))
    return table[b] + slope * (size - b)


def write_costs(path: Path, model: CostModel) -> None:
    """Write a cost model as JSON."""
    write_json(path, {"schema": SCHEMA, **asdict(model)})


def read_costs(path: Path) -> CostModel:
    """Read what ``write_costs`` wrote.

    Raises:
        BenchError: no such file, or another one.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("schema") != SCHEMA:
            raise ValueError(f"a schema other than {SCHEMA}")
        for name in ("target", "draft"):
            found[name] = {int(size): float(seconds) for size, seconds in found[name].items()}
        return CostModel(**found | {name: tuple(found[name]) for name in ("prompt", "draft_prompt")})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(
            f"expected a cost model at {path}, found: {error!r}; measure one with svip-bench calibrate "
            f"--out {path}."
        ) from error
