"""vLLM: speculative decoding with a draft model, EAGLE or EAGLE-3, on its model runner V1.

Seams. ``register`` is a general plugin of vLLM's, which it calls in each of its processes: it wraps one
method of two classes, ``WorkerWrapperBase.init_device`` and (for metrics) ``StatLoggerManager.__init__``.
Where the engine's ``additional_config`` holds a ``length_policy``, the worker's runner and its drafter get,
on the instance: the drafter's ``propose`` and ``_sample_draft_tokens`` (the draft loop is left once every
request has stopped), the runner's ``propose_draft_token_ids`` (a round begins; what was accepted of the last
one), ``take_draft_token_ids`` (each request's draft is cut to its own length, so that much is verified) and
``_update_states`` (requests that ended). Without a ``length_policy`` nothing is said and nothing else done.

Not reached, and refused with what to set: model runner V2 (default on GPUs), async scheduling, methods that
draft all tokens at once or without a model, drafts with another vocabulary, pipeline parallelism, data
parallelism of processes that wait for each other. With tensor parallelism the first process decides for all.
A plan of 0 drafts nothing, but vLLM still runs the draft's forward over the new tokens, to keep its cache.
The last round's draft is not bounded by a stop string: only by token ids that end the request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from svip_adapters.errors import HostVersionError, UnsupportedHostError
from svip_adapters.patching import Patch
from svip_adapters.policy import LengthPolicy

from ._bridge import choose_policy
from ._vllm_config import is_strict, policy_entry, read_policy
from ._vllm_host import logger, require_names, require_tested, require_usable
from ._vllm_metrics import add_stats
from ._vllm_runner import RunnerPatch

__all__ = ["REQUIRES", "patch_vllm", "register"]

REQUIRES = "vllm>=0.32,<0.34"
VERSIONS = REQUIRES.removeprefix("vllm")
_MARK = "_svip_adapters"


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``: once a process, however often it is called."""
    try:
        from vllm.v1.metrics.loggers import StatLoggerManager
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        _after(WorkerWrapperBase, "init_device", _install)
        _after(StatLoggerManager, "__init__", add_stats)
    except (ImportError, AttributeError) as error:  # vLLM must start all the same
        logger().warning(
            "svip-adapters expects %s: here a length_policy would do nothing (%s)", REQUIRES, error
        )


def _after(owner: type, name: str, then: Callable[[Any, Any], None]) -> None:
    """Call ``then(object, vllm_config)`` after the method, unless that is so already."""
    host = getattr(owner, name)
    if hasattr(host, _MARK):
        return

    @functools.wraps(host)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = host(self, *args, **kwargs)
        then(self, args[0] if args else kwargs.get("vllm_config", getattr(self, "vllm_config", None)))
        return result

    setattr(wrapper, _MARK, True)
    setattr(owner, name, wrapper)


def _install(wrapper: Any, vllm_config: Any) -> None:
    """Patch the worker's runner as the configuration says; on a vLLM that is not known, warn and leave it.

    Raises:
        PolicyError: the entry means no policy.
        UnsupportedHostError: the engine cannot carry one.
        HostVersionError: an unknown version, and ``strict`` is set.
    """
    if (entry := policy_entry(vllm_config)) is None:
        return
    policy, strict = read_policy(entry), is_strict(entry)
    if not _known(policy, strict, require_tested, VERSIONS):
        return
    runner = wrapper.worker.model_runner
    require_usable(vllm_config, runner)
    if _known(policy, strict, require_names, runner):
        patch = RunnerPatch(runner, policy, logger())
        most = vllm_config.speculative_config.num_speculative_tokens
        if patch.decides:
            logger().info("Draft length policy on: %r, at most %d tokens a round", policy, most)


def _known(policy: LengthPolicy, strict: bool, check: Callable[[Any], None], what: Any) -> bool:
    """Whether the check passes; if not, a warning, or with ``strict`` its error."""
    try:
        check(what)
    except (HostVersionError, UnsupportedHostError, ImportError, AttributeError) as error:
        if strict:
            raise
        logger().warning_once(
            "Draft length policy %r is OFF, drafts keep their fixed length: %s",
            policy,
            str(error),
            scope="local",
        )
        return False
    return True


def patch_vllm(llm: Any, threshold: float | None = None, *, policy: LengthPolicy | None = None) -> Patch:
    """Let a length policy decide how far each request of an ``LLM`` in this process is drafted.

    For experiments and tests: servers are configured instead, by ``additional_config``. Here the engine must
    run in this process: ``VLLM_ENABLE_V1_MULTIPROCESSING=0``, and ``distributed_executor_backend="uni"``.

    Args:
        llm: a ``vllm.LLM`` with a ``speculative_config``; its ``num_speculative_tokens`` is the most drafted.
        threshold: short for ``policy=SVIP(threshold=...)``; with neither, ``RateOptimal()``.
        policy: any ``LengthPolicy``; one that learns is copied for each request.

    Returns:
        A ``Patch``: ``.stats`` counts all requests, ``.requests`` each by vLLM's internal id; ``.revert()``.

    Raises:
        HostVersionError: a vLLM outside the range.
        UnsupportedHostError: an engine that cannot carry a policy.
        PolicyError: threshold and policy both given.
        PatchError: the engine is patched already.
    """
    chosen = choose_policy(threshold, policy)
    require_tested(VERSIONS)
    client = llm.llm_engine.engine_core
    executor = getattr(getattr(client, "engine_core", None), "model_executor", None)
    worker = getattr(executor, "driver_worker", None)
    if worker is None:
        raise UnsupportedHostError(
            f"expected an engine that runs in this process, found {type(client).__name__}; "
            "set VLLM_ENABLE_V1_MULTIPROCESSING=0 before vllm is imported, or pass additional_config="
            '{"length_policy": {...}} to LLM(...).'
        )
    runner = worker.worker.model_runner
    require_usable(llm.llm_engine.vllm_config, runner)
    require_names(runner)
    return RunnerPatch(runner, chosen, logger())
