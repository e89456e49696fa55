"""What a host's forwards cost here: timed inside real generations of several draft lengths, interleaved."""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..extras import import_extra
from ..hosts.base import Generation
from ..hosts.transformers import TransformersHost
from .costs import CostModel

__all__ = ["calibrate"]

CHAINS = [f"fixed:{n}" for n in (1, 2, 3, 5, 8, 16)]
GLIDE = [f"fixed:{n}@max_length=16" for n in (1, 2, 3, 5, 8)]
TREES = [
    f"host@depth={depth},total_tokens={nodes}"
    for depth, nodes in ((0, 1), (0, 2), (1, 4), (2, 8), (4, 16), (7, 30))
]
NEW_TOKENS = 24


class Stopwatch:
    """Times the forwards of one generation by hooks.

    Attributes:
        target: (tokens, seconds) of each forward of the target, its head included.
        draft: (rows, seconds) of each of the draft, and of the target's head where the draft uses it. The
            first one after the target counts as one row: what it reads in costs little beside.
    """

    def __init__(self, host: TransformersHost) -> None:
        self.target: list[tuple[int, float]] = []
        self.draft: list[tuple[int, float]] = []
        self._host, self._started, self._last = host, 0.0, self.target
        self._handles: list[Any] = []

    def __enter__(self) -> Stopwatch:
        target = self._host.target
        for module, name in ((target.model, "target"), (self._host.draft, "draft"), (target.lm_head, "head")):
            self._handles.append(module.register_forward_pre_hook(self._start))
            stop = getattr(self, f"_after_{name}")
            self._handles.append(module.register_forward_hook(stop, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _now(self) -> float:
        if self._host.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _start(self, *_: Any) -> None:
        self._started = self._now()

    def _after_target(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        self.target.append((_tokens(args, kwargs), self._now() - self._started))
        self._last = self.target

    def _after_draft(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        first = self._last is self.target and self.draft
        rows = 1 if first else _tokens(args, kwargs)
        self.draft.append((rows, self._now() - self._started))
        self._last = self.draft

    def _after_head(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        size, seconds = self._last[-1]
        self._last[-1] = size, seconds + self._now() - self._started


def _tokens(args: Any, kwargs: dict[str, Any]) -> int:
    ids = kwargs.get("input_ids")
    if ids is None:  # positional: GliDe's (ids, ..), EAGLE's (features, ids, ..)
        ids = args[0]
    return int(ids.shape[1])


def calibrate(host: TransformersHost, prompts: Sequence[list[int]], *, repeats: int) -> CostModel:
    """Measure a host on some prompts.

    Args:
        host: an embedded one.
        prompts: token ids.
        repeats: of every prompt under every setting.
    """
    settings = ["plain", *(TREES if "depth" in host.limits else GLIDE if host.limits else CHAINS)]
    runs: dict[str, list[tuple[Stopwatch, Generation]]] = defaultdict(list)
    for repeat in range(repeats + 1):
        for prompt in prompts if repeat else prompts[:1]:
            for setting in settings:
                with Stopwatch(host) as watch:
                    run = host.generate(
                        prompt, policy=setting, max_new_tokens=NEW_TOKENS, temperature=0.0, seed=0
                    )
                if repeat:  # the first time warms up
                    runs[setting].append((watch, run))
    plain, drafting = runs.pop("plain"), [run for found in runs.values() for run in found]
    everything = [watch for watch, _ in plain + drafting]
    per_round, per_step = _overheads(drafting)
    return CostModel(
        target=_medians(size for watch in everything for size in watch.target[1:]),
        draft=_medians(size for watch, _ in drafting for size in watch.draft[1:]),
        prompt=_line([watch.target[0] for watch in everything]),
        draft_prompt=_line([watch.draft[0] for watch, _ in drafting]),
        per_round=per_round,
        per_step=per_step,
        per_token=float(np.median([_rest(*run) / len(run[1].ids) for run in plain])),
        about=_about(host, len(prompts), repeats),
    )


def _medians(found: Any) -> dict[int, float]:
    sizes: dict[int, list[float]] = defaultdict(list)
    for size, seconds in found:
        sizes[size].append(seconds)
    return {size: float(np.median(times)) for size, times in sorted(sizes.items()) if len(times) > 2}


def _line(found: list[tuple[int, float]]) -> tuple[float, float]:
    sizes, seconds = np.array(found).T
    if len(set(sizes)) < 2:
        return 0.0, float(np.median(seconds) / sizes[0])
    slope, fixed = np.polyfit(sizes, seconds, 1)
    return float(fixed), float(slope)


def _rest(watch: Stopwatch, run: Generation) -> float:
    return run.seconds - sum(seconds for _, seconds in watch.target + watch.draft)


def _overheads(runs: list[tuple[Stopwatch, Generation]]) -> tuple[float, float]:
    """Seconds a round and a draft step take beside the forwards: least squares, neither below zero."""
    counts = np.array([[len(run.accept_lengths), run.draft_steps] for _, run in runs], dtype=float)
    rest = np.array([_rest(*run) for run in runs])
    per_round, per_step = import_extra("scipy.optimize").nnls(counts, rest)[0]
    return float(per_round), float(per_step)


def _about(host: TransformersHost, prompts: int, repeats: int) -> dict[str, Any]:
    return {
        "host": host.name,
        "dtype": host.dtype,
        "device": host.device,
        "threads": torch.get_num_threads(),
        "machine": platform.platform(),
        "processor": _processor(),
        "versions": host.versions(),
        "prompts": prompts,
        "repeats": repeats,
    }


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
