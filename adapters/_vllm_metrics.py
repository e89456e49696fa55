"""What a policy does in a server: in vLLM's own log, and in its Prometheus registry.

The log is written where the model runs, and has the policy's own counts. The registry is in the process that
answers HTTP, which knows what was verified only; drafted and accepted tokens are counted there by vLLM itself
(``vllm:spec_decode_*``).
"""

from __future__ import annotations

import copy
import time
from typing import Any

from svip_adapters.patching import PatchStats

from ._vllm_config import policy_entry
from ._vllm_host import logger

__all__ = ["PolicyStats", "TotalsLog", "add_stats"]

PREFIX = "svip:"
LOG_SECONDS = 10.0


class TotalsLog:
    """A line an interval in which something was drafted, as vLLM has its own.

    Args:
        stats: counts of all requests. log: where to.
    """

    def __init__(self, stats: PatchStats, log: Any) -> None:
        self._stats, self._log = stats, log
        self._seen, self._at = copy.copy(stats), time.monotonic()

    def tick(self) -> None:
        """Write the line, if it is time."""
        now, rounds = time.monotonic(), self._stats.rounds - self._seen.rounds
        if now - self._at < LOG_SECONDS or not rounds:
            return
        names = ("drafted", "accepted", "early_stops")
        drafted, accepted, early = (getattr(self._stats, n) - getattr(self._seen, n) for n in names)
        self._log.info(
            "Draft length policy: %d rounds of requests, %.2f tokens drafted in one, %.0f%% of them stopped "
            "early, %.0f%% of the tokens accepted",
            rounds,
            drafted / rounds,
            100 * early / rounds,
            100 * accepted / max(drafted, 1),
        )
        self._seen, self._at = copy.copy(self._stats), now


def add_stats(manager: Any, vllm_config: Any) -> None:
    """Add ``PolicyStats`` to a ``StatLoggerManager``, where a policy is configured; never fails."""
    if policy_entry(vllm_config) is None or vllm_config.speculative_config is None:
        return
    try:
        manager.stat_loggers.append(PolicyStats(vllm_config, manager.engine_indexes))
    except Exception:
        logger().warning("No svip:* metrics: this vLLM has others than were expected", exc_info=True)


class PolicyStats:
    """How long the verified drafts are; what vLLM calls a stat logger.

    ``svip:draft_length`` is a histogram of the tokens that were verified in a round of a request,
    ``svip:short_drafts`` counts those below ``num_speculative_tokens``: stopped by the policy, planned so, or
    cut by the request's end. Rounds that drafted nothing are in neither, as in vLLM's own counts.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        from prometheus_client import REGISTRY, Counter, Histogram

        self._on = True
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
        short = Counter(f"{PREFIX}short_drafts", "Drafts below num_speculative_tokens.", names)
        model = vllm_config.model_config.served_model_name
        self._lengths = {engine: lengths.labels(model, str(engine)) for engine in engine_indexes}
        self._short = {engine: short.labels(model, str(engine)) for engine in engine_indexes}

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any = None,
        *args: Any,
        engine_idx: int = 0,
        **kwargs: Any,
    ) -> None:
        """Take up one step's counts of ``SpecDecodingStats``; what goes wrong is logged once."""
        if not self._on or scheduler_stats is None or scheduler_stats.spec_decoding_stats is None:
            return
        try:
            self._take(scheduler_stats.spec_decoding_stats, engine_idx)
        except Exception:
            self._on = False
            logger().warning("svip:* metrics are off from here on", exc_info=True)

    def _take(self, stats: Any, engine: int) -> None:
        reached = [*stats.num_draft_tokens_per_pos, 0]  # rounds with at least so many tokens
        for length in range(1, len(reached)):
            for _ in range(reached[length - 1] - reached[length]):
                self._lengths[engine].observe(length)
        self._short[engine].inc(stats.num_drafts - reached[self._most - 1])

    def _ignored(self, *args: Any, **kwargs: Any) -> None:
        """What else a stat logger is told."""

    log = log_engine_initialized = record_sleep_state = record_admission_rejection = _ignored
