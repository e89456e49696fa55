"""vLLM: speculative decoding with a draft model, EAGLE or EAGLE-3, on its model runner V1.

Seams. ``register`` is a general plugin of vLLM's, which it calls in each of its processes: it wraps one
method of one class, ``WorkerWrapperBase.init_device``. Where the engine's ``additional_config`` holds a
``length_policy``, the worker's model runner and that runner's drafter get, on the instance: the drafter's
``propose`` and ``_sample_draft_tokens`` (the draft loop is left once every request has stopped), the runner's
``propose_draft_token_ids`` (a round begins; what was accepted of the last one), ``take_draft_token_ids``
(each request's draft is cut to its own length, so that much is verified) and ``_update_states`` (requests
that ended). Without a ``length_policy`` nothing is said and nothing else is done.

Not reached, and refused with what to set: model runner V2 (default on GPUs), async scheduling, methods that
draft all tokens at once or without a model, drafts with another vocabulary, pipeline and data parallelism.
With tensor parallelism the first process decides for all.
A plan of 0 drafts nothing, but vLLM still runs the draft's forward over the new tokens, to keep its cache.
The last round's draft is not bounded by a stop string: only by token ids that end the request.
"""

from __future__ import annotations

import functools
from typing import Any

from svip_adapters.errors import HostVersionError, UnsupportedHostError
from svip_adapters.patching import Patch
from svip_adapters.policy import LengthPolicy

from ._bridge import choose_policy
from ._vllm_config import is_strict, policy_entry, read_policy
from ._vllm_host import logger, require_tested, require_usable

__all__ = ["REQUIRES", "patch_vllm", "register"]

REQUIRES = "vllm>=0.32,<0.34"
VERSIONS = REQUIRES.removeprefix("vllm")


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``: once a process, however often it is called."""
    try:
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        host = WorkerWrapperBase.init_device
    except (ImportError, AttributeError) as error:  # vLLM must start all the same
        logger().warning(
            "svip-adapters expects %s: here a length_policy would do nothing (%s)", REQUIRES, error
        )
        return
    if hasattr(host, "_svip_adapters"):
        return

    @functools.wraps(host)
    def init_device(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        result = host(wrapper, *args, **kwargs)
        if (entry := policy_entry(wrapper.vllm_config)) is not None:
            _install(wrapper.vllm_config, wrapper.worker.model_runner, entry)
        return result

    init_device._svip_adapters = True  # type: ignore[attr-defined]
    WorkerWrapperBase.init_device = init_device


def _install(vllm_config: Any, runner: Any, entry: Any) -> None:
    """Patch the runner as the entry says; on a vLLM that is not known, warn and leave it alone.

    Raises:
        PolicyError: the entry means no policy. UnsupportedHostError: the engine cannot carry one.
        HostVersionError: an unknown version, and ``strict`` is set.
    """
    policy = read_policy(entry)
    try:
        require_tested(VERSIONS)
    except (HostVersionError, UnsupportedHostError, ImportError, AttributeError) as error:
        if is_strict(entry):
            raise
        logger().warning(
            "The draft length policy %r is OFF, drafts keep their fixed length: %s", policy, error
        )
        return
    require_usable(vllm_config, runner)
    _patch(runner, policy)
    most = vllm_config.speculative_config.num_speculative_tokens
    logger().info("Draft length policy on: %r, at most %d tokens a round", policy, most)


def _patch(runner: Any, policy: LengthPolicy) -> Patch:
    from ._vllm_runner import RunnerPatch

    return RunnerPatch(runner, policy, logger())


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
    return _patch(runner, chosen)
