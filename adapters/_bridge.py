"""What every adapter needs between a host and a policy: choosing it, asking it, checking its answers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from svip_adapters import signals
from svip_adapters.errors import PatchError, PolicyError, UnsupportedHostError
from svip_adapters.policy import DraftStep, LengthPolicy, RoundContext

__all__ = ["ChainRound", "NotCopied", "SharedSwaps", "ask", "choose_policy", "node_floor", "plan_length"]


def choose_policy(threshold: float | None, policy: LengthPolicy | None) -> LengthPolicy:
    """The policy a user meant by ``patch_<host>(model, threshold, policy=...)``: SVIP at that
    threshold, or the policy, or RateOptimal(), which needs no threshold.

    Raises:
        PolicyError: both were given, or ``policy`` is not a ``LengthPolicy`` object.
    """
    from svip_adapters.policies import SVIP, RateOptimal

    if policy is None:
        return RateOptimal() if threshold is None else SVIP(threshold=threshold)
    if threshold is not None:
        raise PolicyError(
            f"expected a threshold or a policy, found both ({threshold!r} and {policy!r}): a threshold is "
            "short for policy=SVIP(threshold=...). Pass one of them."
        )
    if not isinstance(policy, LengthPolicy):
        raise PolicyError(
            f"expected policy to be a LengthPolicy object, found {policy!r}. Pass an instance, such as "
            "SVIP(threshold=0.3); svip_adapters.policies.parse_policy makes one from a name."
        )
    return policy


def plan_length(policy: LengthPolicy, context: RoundContext) -> int:
    """Most tokens to draft in this round: the policy's plan, its cap and what the sequence has left.

    Raises:
        PolicyError: the plan is no whole number, or below zero.
    """
    plan: Any = policy.plan(context)
    try:
        planned = operator.index(plan)
    except TypeError:
        planned = -1
    if planned < 0:
        raise PolicyError(
            f"{type(policy).__name__}.plan: expected a whole number of tokens, 0 or more, found {plan!r}. "
            "Return an int; 0 skips drafting."
        )
    return min(planned, policy.max_length, context.remaining)


def node_floor(policy: LengthPolicy, own: float) -> float:
    """Path probability up to which nodes are left out: the policy's, or the host's ``own`` if that is larger.

    Raises:
        PolicyError: the policy's is no number from 0 to below 1.
    """
    floor: Any = policy.least_probability()
    if not (isinstance(floor, (int, float)) and 0 <= floor < 1):
        raise PolicyError(
            f"{type(policy).__name__}.least_probability: expected a number from 0 to below 1, found "
            f"{floor!r}. Return 0.0 to verify every node there is room for."
        )
    return max(float(floor), own)


def ask(policy: LengthPolicy, step: DraftStep) -> Tensor:
    """The policy's answer, (N,) bool on the logits' device.

    Raises:
        PolicyError: it is anything else. What the policy itself raises passes through.
    """
    answer: Any = policy.stop(step)
    wanted = (torch.bool, (step.count,), step.device)
    if isinstance(answer, Tensor):
        if (answer.dtype, answer.shape, answer.device) == wanted:
            return answer
        found = f"{answer.dtype} of shape {tuple(answer.shape)} on {answer.device}"
    else:
        found = repr(answer)
    raise PolicyError(
        f"{type(policy).__name__}.stop: expected torch.bool of shape ({step.count},) on "
        f"{step.device}, found {found}. Return one answer a row of step.logits, such as step.entropy > "
        "limit."
    )


class ChainRound:
    """One round of drafting on a chain: puts each step to the policy and keeps what it said.

    Attributes:
        limit: most tokens to draft.
        steps: draft steps taken so far.
        stop: (N,) bool, the policy's last answer; None if it was not asked at the last step.
        drawn: (N,) int64, the last token drawn.
        error: what the policy raised. Kept, not raised, so that the host ends its draft in good order;
            the adapter raises it once the host is out of its loop.
    """

    def __init__(self, policy: LengthPolicy, limit: int) -> None:
        self.policy = policy
        self.limit = limit
        self.steps = 0
        self.stop: Tensor | None = None
        self.drawn: Tensor | None = None
        self.error: Exception | None = None
        self._path_logp: Tensor | Callable[[], Tensor] | None = None

    def ask(self, logits: Tensor, drawn: Tensor) -> Tensor:
        """Whether the draft ends at this step: (N,) bool, for the host to act on.

        Args:
            logits: (N, V) raw.
            drawn: (N,) int64, what was drawn from them. A rule that stops before drawing never sees it,
                so it is no matter that the host has drawn already: the adapter takes the token back.
        """
        before = self.policy.stops_before
        shown = None if before else drawn.clone()  # the host's own ids must not be within a policy's reach
        step = DraftStep(logits, depth=self.steps, path_logp=self._path_logp, drawn=shown)
        self.steps, self.drawn, self.stop = self.steps + 1, drawn, None
        self._path_logp = lambda: step.path_logp + _logp(step, drawn)
        if self.steps >= self.limit and not before:
            return torch.zeros_like(drawn, dtype=torch.bool)  # the last planned token: nothing to decide
        try:
            self.stop = ask(self.policy, step)
        except Exception as error:
            self.error = error
            return torch.ones_like(drawn, dtype=torch.bool)
        if "log_z" in vars(step):  # then it costs next to nothing now, and the logits can go
            self._path_logp = step.path_logp + _logp(step, drawn)
        return self.stop


def _logp(step: DraftStep, drawn: Tensor) -> Tensor:
    """(N,) log-probability of ``drawn`` under the step's raw logits."""
    return signals.token_logp(step.logits, drawn, step.log_z)  # NaN counts as impossible


class NotCopied:
    """What a patch puts on a model: a copy of the model would share it."""

    def __reduce__(self) -> NoReturn:
        raise UnsupportedHostError(
            "expected an unpatched model to copy or pickle, found a patched one: the copy would share the "
            "patch of the original. Call revert() first, then patch the copy."
        )


class SharedSwaps:
    """Attributes of classes that all live patches of a host need: the first swaps, the last puts back."""

    def __init__(self) -> None:
        self._holders = 0
        self._swapped: list[tuple[type, str, Any, Any]] = []

    def acquire(self, *swaps: tuple[type, str, Callable[[Any], Any]]) -> None:
        """Swap each ``owner.name`` for ``wrap(original)``, unless another patch has done so."""
        self._holders += 1
        if self._holders > 1:
            return
        for owner, name, wrap in swaps:
            original = vars(owner)[name]
            replacement = wrap(original)
            setattr(owner, name, replacement)
            self._swapped.append((owner, name, original, replacement))

    def release(self) -> None:
        """Put everything back, if no other patch is live.

        Raises:
            PatchError: something was patched on top; nothing is changed then.
        """
        if self._holders == 1:
            for owner, name, _, replacement in self._swapped:
                if vars(owner).get(name) is not replacement:
                    raise PatchError(
                        f"expected {owner.__name__}.{name} as this patch set it, found it replaced since; "
                        "undo what was patched on top first, then revert again."
                    )
            while self._swapped:
                owner, name, original, _ = self._swapped.pop()
                setattr(owner, name, original)
        self._holders -= 1
