"""vLLM's model runner V1 under a policy: what is set on one runner and its drafter."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from svip_adapters.errors import PatchError
from svip_adapters.patching import Patch, PatchStats
from svip_adapters.policy import LengthPolicy, RoundContext

from ._bridge import NotCopied
from ._vllm_host import Ranks
from ._vllm_metrics import TotalsLog
from ._vllm_round import BatchRound, Requests, Row

__all__ = ["RunnerPatch"]


class _AllStopped(Exception):
    """Leaves the host's draft loop, between two forwards: no context of the host's is open there."""


class RunnerPatch(NotCopied, Patch):
    """A patched model runner. ``stats`` counts all requests, its ``draft_steps`` forwards of the draft.

    A policy that raises, or answers in another type or shape, is logged once and taken off: the engine
    goes on without it.

    Args:
        runner: a ``GPUModelRunner`` (V1) whose drafter is a ``SpecDecodeBaseProposer``.
        policy: the rule. log: the host's logger.

    Raises:
        PatchError: the runner is patched already.
    """

    def __init__(self, runner: Any, policy: LengthPolicy, log: Any) -> None:
        super().__init__(runner, policy)
        self._runner, self._drafter, self._log = runner, runner.drafter, log
        self._requests = Requests(policy, self.stats)
        self._round: BatchRound | None = None
        self._cut: dict[str, int] = {}
        self._off = False  # like not self.active, but also where reverting failed
        self._proposed = False
        self._ranks = Ranks(runner.parallel_config.tensor_parallel_size)
        self.decides = self._ranks.decide
        self._totals = TotalsLog(self.stats, log)
        for name in ("_update_states", "propose_draft_token_ids", "take_draft_token_ids"):
            self._wrap(runner, name)
        for name in ("propose", "_sample_draft_tokens"):
            self._wrap(self._drafter, name)

    def _wrap(self, owner: Any, name: str) -> None:
        host, ours = getattr(owner, name), getattr(self, f"_on_{name.lstrip('_')}")

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return ours(host, *args, **kwargs)

        self.set(owner, name, wrapper)

    @property
    def requests(self) -> dict[str, PatchStats]:
        """Counts by vLLM's internal request id: of requests that run, and of the last 4096 that ended."""
        return self._requests.stats

    def _switch_off(self, error: Exception) -> None:
        """Log what the policy did, once, and give the runner back to the host."""
        self._log.error(
            "Drafting under the policy %r failed: it is off from here on, and requests go on with the host's "
            "fixed draft length. Mend what the error below says, and restart the server.",
            self.policy,
            exc_info=error,
        )
        self._leave()

    def _leave(self) -> None:
        self._round, self._cut, self._off = None, {}, True
        with suppress(PatchError):  # something was patched on top: what is ours passes through from now on
            self.revert()

    def _on_update_states(self, host: Any, scheduler_output: Any) -> Any:
        """A step begins: drop the state of requests that ended, were aborted or preempted."""
        self._round, self._cut, self._proposed = None, {}, False
        gone = {*scheduler_output.finished_req_ids, *(scheduler_output.preempted_req_ids or ())}
        for request, stats in self._requests.forget(gone):
            self._log.debug("Draft length of %s: %s", request, stats)
        self._totals.tick()
        return host(scheduler_output)

    def _on_propose_draft_token_ids(
        self, host: Any, scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """The target has verified the last round, and the next one begins."""
        if self._off:
            return host(scheduler_output, sampled_token_ids, *args, **kwargs)
        self._proposed = True
        self._round = self._begin(scheduler_output, sampled_token_ids)
        result = host(scheduler_output, sampled_token_ids, *args, **kwargs)
        if self._round is not None:
            self._cut = {row.request: row.length for row in self._round.rows}
            self._round = None
        return result

    def _begin(self, scheduler_output: Any, sampled: Tensor | list[list[int]]) -> BatchRound | None:
        current = None
        if self._ranks.decide:
            try:
                current = BatchRound(self._plan(scheduler_output, sampled))
            except Exception as error:
                self._switch_off(error)
        limit = self._ranks.agree(None if current is None else current.limit)
        if limit is None:
            self._leave()
            return None
        return current or BatchRound((), limit)

    def _plan(self, scheduler_output: Any, sampled: Tensor | list[list[int]]) -> list[Row]:
        batch = self._runner.input_batch
        ids = list(batch.req_ids)
        partial = self._runner.discard_request_mask.np[: len(ids)].tolist()  # prompts not read to their end
        entered = isinstance(sampled, list)  # whether the host has entered these tokens into its batch
        new = [len(t) for t in sampled] if isinstance(sampled, list) else sampled.ne(-1).sum(1).tolist()
        verified = scheduler_output.scheduled_spec_decode_tokens
        running, most = len(ids) - sum(partial), scheduler_output.num_spec_tokens_to_schedule
        rows = []
        for i, request in enumerate(ids):
            if partial[i]:
                rows.append(self._requests.idle(request))
                continue
            self._requests.verified(request, len(verified.get(request, ())), max(new[i] - 1, 0))
            length = int(batch.num_tokens_no_spec[i]) + (0 if entered else new[i])
            context, ends = self._context(request, length, length - int(batch.num_prompt_tokens[i]), running)
            rows.append(self._requests.plan(request, context, most, ends))
        return rows

    def _context(
        self, request: str, length: int, written: int, running: int
    ) -> tuple[RoundContext, frozenset[int]]:
        """What is known before the round, and the tokens that end the request."""
        params = self._runner.requests[request].sampling_params
        most = math.inf if params.max_tokens is None else params.max_tokens
        left = min(most - written, self._runner.max_model_len - length) - 1
        ends = {params.eos_token_id, *(params.stop_token_ids or ())} - {None}
        if written < params.min_tokens:  # the host does not let them happen
            ends = set()
        context = RoundContext(context_length=length, remaining=max(0, int(left)), batch_size=running)
        return context, frozenset(ends)

    def _on_take_draft_token_ids(self, host: Any) -> Any:
        """Each request's draft, cut to its own length: the scheduler verifies that many tokens."""
        taken = host()
        if self._off or taken is None:
            return taken
        if not self._proposed:
            # A request is too long for the draft: the host has drafted for none, and has zeros verified.
            self._requests.lose()
            taken = replace(taken, draft_token_ids=[[] for _ in taken.req_ids])
        elif self._cut:
            lists = zip(taken.req_ids, taken.draft_token_ids, strict=True)
            cut = [tokens[: self._cut.get(request, len(tokens))] for request, tokens in lists]
            taken = replace(taken, draft_token_ids=cut)
        return taken

    def _on_propose(self, host: Any, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> Tensor:
        """The host's draft loop, no longer than the longest plan, and left once every row has stopped."""
        current = self._round
        if current is None:
            return host(num_speculative_tokens, *args, **kwargs)  # type: ignore[no-any-return]
        try:
            ids: Tensor = host(current.limit, *args, **kwargs)
        except _AllStopped:
            ids = torch.stack(current.tokens, dim=1)
            if current.probs:
                self._drafter._last_draft_probs = torch.stack(current.probs, dim=1).contiguous()
        self.stats.draft_steps += len(current.tokens)
        return ids

    def _on_sample_draft_tokens(
        self, host: Any, hidden_states: Tensor, sampling_metadata: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The host's method, spelt out to come by the logits; then the policies are asked."""
        current, drafter = self._round, self._drafter
        if current is None:
            return host(hidden_states, sampling_metadata)  # type: ignore[no-any-return]
        logits = drafter.model.compute_logits(hidden_states)
        divides = drafter._enable_probabilistic_draft_probs and not sampling_metadata.all_greedy  # in place
        own = logits.clone() if divides else logits
        drawn, probs = drafter._sample_from_logits(own, sampling_metadata)
        current.keep(drawn, probs)
        goes_on = self._ask(current, logits)
        if not goes_on and len(current.tokens) < drafter.num_speculative_tokens:
            raise _AllStopped
        return drawn, probs

    def _ask(self, current: BatchRound, logits: Tensor) -> bool:
        """Whether any request goes on; all do where a policy failed, which is then off."""
        goes_on = None
        if self._ranks.decide:
            try:
                goes_on = current.ask(logits)
            except Exception as error:
                self._switch_off(error)
        goes_on = self._ranks.agree(goes_on)
        if goes_on is None:
            self._leave()
            return True
        return bool(goes_on)
