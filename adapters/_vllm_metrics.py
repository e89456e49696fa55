"""What a policy does in a server, in vLLM's own log and Prometheus registry.

vLLM loads this file, by its entry point in the group ``vllm.stat_logger_plugins``, in the process that
answers HTTP. Drafted and accepted tokens are counted by vLLM itself (``vllm:spec_decode_*``).
"""

from __future__ import annotations

import functools
from typing import Any

from ._vllm_config import policy_entry
from ._vllm_host import logger

PREFIX = "svip:"


class PolicyStats:
    """Draft lengths and early stops, of each round of each request; silent without a ``length_policy``.

    ``svip:draft_length`` is a histogram of the tokens that were verified in a round, ``svip:early_stops``
    counts rounds with fewer than ``num_speculative_tokens``, whatever made them short. Rounds that drafted
    nothing are in neither, as in vLLM's own counts.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        self._on = policy_entry(vllm_config) is not None and vllm_config.speculative_config is not None
        if not self._on:
            return
        from prometheus_client import REGISTRY, Counter, Histogram

        self._most: int = vllm_config.speculative_config.num_speculative_tokens
        for collector in list(REGISTRY._collector_to_names):  # an engine that was started before this one
            if getattr(collector, "_name", "").startswith(PREFIX):
                REGISTRY.unregister(collector)
        names = ["model_name", "engine"]
        lengths = Histogram(
            f"{PREFIX}draft_length",
            "Draft tokens verified in a round of a request.",
            names,
            buckets=range(1, self._most + 1),
        )
        stops = Counter(f"{PREFIX}early_stops", "Rounds shorter than num_speculative_tokens.", names)
        model = vllm_config.model_config.served_model_name
        self._lengths = {engine: lengths.labels(model, str(engine)) for engine in engine_indexes}
        self._stops = {engine: stops.labels(model, str(engine)) for engine in engine_indexes}
        self._seen = [0, 0, 0]  # rounds, tokens, early stops since the last line of the log

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Take up one step's counts of ``SpecDecodingStats``."""
        stats = scheduler_stats.spec_decoding_stats if self._on and scheduler_stats else None
        if stats is None:
            return
        reached = [*stats.num_draft_tokens_per_pos, 0]  # rounds with at least so many tokens
        for length in range(1, len(reached)):
            for _ in range(reached[length - 1] - reached[length]):
                self._lengths[engine_idx].observe(length)
        early = stats.num_drafts - reached[self._most - 1]
        self._stops[engine_idx].inc(early)
        counts = (stats.num_drafts, stats.num_draft_tokens, early)
        self._seen = [seen + new for seen, new in zip(self._seen, counts, strict=True)]

    def log(self) -> None:
        """A line beside vLLM's own, each interval in which something was drafted."""
        if not self._on or not self._seen[0]:
            return
        rounds, tokens, early = self._seen
        logger().info(
            "Draft length policy: %d rounds, mean draft length %.2f, %.0f%% stopped early",
            rounds,
            tokens / rounds,
            100 * early / rounds,
        )
        self._seen = [0, 0, 0]

    def log_engine_initialized(self) -> None:
        """Nothing to say: the worker has said that the policy is on."""


@functools.cache
def _plugin() -> type:
    """vLLM asks for a class of its own kind; it is made when the entry point is loaded."""
    from vllm.v1.metrics.loggers import AggregateStatLoggerBase

    return type("PolicyStatLogger", (PolicyStats, AggregateStatLoggerBase), {"__doc__": PolicyStats.__doc__})


def __getattr__(name: str) -> Any:
    if name == "PolicyStatLogger":
        return _plugin()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
