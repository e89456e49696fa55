"""GliDe's rounds under a policy: what stands in for the functions that a round goes through."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from svip_adapters.errors import UnsupportedHostError
from svip_adapters.patching import Patch
from svip_adapters.policy import Outcome, RoundContext

from ._bridge import ChainRound, NotCopied, plan_length
from ._glide_host import METHODS, Functions, warn_of_rope

__all__ = ["Bridge", "rebound"]

NO_TOKEN = -1
# What upstream can be asked for and cannot be patched, or does not work: {option: (off, why)}.
_REFUSED = {
    "do_beam_sample": (False, "beam search proposes no single draft"),
    "expand_cape": (False, "it drafts a fixed number of levels by a function of its own"),
    "do_speculative_sample": (False, "upstream's verification fails when sampling, with an IndexError"),
    "num_beams": (1, "beam search proposes no single draft"),
}


def rebound(model: Any, method: str, **names: Any) -> Callable[..., Any]:
    """A copy of a model's method, bound to it, that sees other objects under some of its module's names."""
    function = getattr(type(model), method)
    seen = {**function.__globals__, **names}
    copy = types.FunctionType(
        function.__code__, seen, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__, copy.__doc__ = function.__kwdefaults__, function.__doc__
    return types.MethodType(copy, model)


class Bridge(NotCopied):
    """One patched drafter and the round that is open.

    Args:
        host: the functions that are stood in for.
        limit: most tokens to draft in a round.
    """

    def __init__(self, model: Any, host: Functions, patch: Patch, *, limit: int, fix_padding: bool) -> None:
        self._host, self._limit, self._fix_padding = host, limit, fix_padding
        self._policy, self._stats = patch.policy, patch.stats
        self._model = model
        self._forward = rebound(model, "medusa_forward", greedy_search=self.draft)
        self._drafted: tuple[int, bool] | None = None
        self._nodes = 0
        self._checked: weakref.ref[Any] | None = None

    def methods(self) -> dict[str, Callable[..., Any]]:
        """{name: what to put on the drafter under it}."""
        names = {
            "generate_candidates_joint_llama": self.candidates,
            "update_inference_inputs_joint_llama": self.update,
        }
        loops = [name for name in METHODS[1:] if hasattr(self._model, name)]
        found = {name: self._beginning(rebound(self._model, name, **names)) for name in loops}
        return found | {"medusa_forward": self.forward}

    def _beginning(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(loop)
        def generate(input_ids: Tensor, large_model: Any, *args: Any, **kwargs: Any) -> Any:
            self._policy.begin()
            if self._checked is None or self._checked() is not large_model:
                self._checked = weakref.ref(large_model)
                warn_of_rope(self._model, large_model)
            return loop(input_ids, large_model, *args, **kwargs)

        return generate

    def forward(self, large_model: Any, *args: Any, **kwargs: Any) -> Any:
        """The host's ``medusa_forward``: one draft, after the prompt's forward on a sequence's first call."""
        for name, (off, reason) in _REFUSED.items():
            if kwargs.get(name, off) != off:
                raise UnsupportedHostError(
                    f"expected {name}={off!r} with a patched GliDe drafter, found {kwargs[name]!r}: "
                    f"{reason}. Leave it out, or revert the patch."
                )
        return self._forward(large_model, *args, **kwargs)

    def draft(self, model: Any, input_ids: Tensor, **arguments: Any) -> Any:
        """The host's ``greedy_search``, under the policy; at least one token is drafted."""
        context = RoundContext(context_length=input_ids.shape[1], remaining=self._limit)
        current = ChainRound(self._policy, max(1, plan_length(self._policy, context)))

        def stopping_criteria(ids: Tensor, scores: tuple[Tensor, ...]) -> bool:
            # Rows are copies of one sequence (batch_size > 1 measures the speed of a batch).
            stop = current.ask(scores[-1][:1], ids[:1, -1])
            return bool(stop) or current.steps >= current.limit

        arguments["stopping_criteria"] = stopping_criteria
        output = self._host.greedy_search(model, input_ids, **arguments)
        if current.error is not None:
            raise current.error
        stopped = current.stop is not None and bool(current.stop)
        if stopped and self._policy.stops_before and current.steps > 1:
            output = {**output, "sequences": output["sequences"][:, :-1], "scores": output["scores"][:-1]}
        depth = output["sequences"].shape[1] - input_ids.shape[1]
        self._stats.draft_steps += current.steps  # a stream drafts once more than it verifies
        self._drafted = depth, stopped and depth < current.limit
        return output

    def candidates(self, tree_candidates: Tensor, retrieve_indices: Tensor) -> tuple[Tensor, Tensor]:
        """The host's paths (leaves, depth + 1), where a path's padding is no token that could be accepted."""
        self._nodes = len(tree_candidates) - 1
        paths, tree = self._host.generate_candidates_joint_llama(tree_candidates, retrieve_indices)
        return paths.masked_fill(retrieve_indices < 0, NO_TOKEN) if self._fix_padding else paths, tree

    def update(self, **arguments: Any) -> Any:
        """The host's keeping of what was accepted; then the round is reported."""
        result = self._host.update_inference_inputs_joint_llama(**arguments)
        drafted, self._drafted = self._drafted, None
        if drafted is not None:  # None: a stream that goes on after its patch was reverted
            accepted = int(torch.as_tensor(arguments["accept_length"]))
            outcome = Outcome(drafted=self._nodes, accepted=accepted, depth=drafted[0])
            self._stats.add_round(outcome, draft_steps=0, early_stop=drafted[1])
            self._policy.verified(outcome)
        return result
