"""What ``svip_adapters.testing.check_policy`` checks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from svip_adapters.errors import PolicyError
from svip_adapters.policies._arguments import require_integer
from svip_adapters.policy import DraftStep, LengthPolicy, Outcome, RoundContext

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_policy"]

_VOCAB = 64
_DEPTHS = (0, 1, 5)
_CONTEXTS = [
    RoundContext(context_length=length, remaining=remaining, batch_size=batch)
    for length in (1, 1_000_000)
    for remaining in (0, 1, 1_000_000)
    for batch in (1, 4096)
]
_HISTORY = 20 * [Outcome(drafted=1, accepted=0), Outcome(drafted=9, accepted=3, depth=3)]
_HISTORY += 20 * [Outcome(drafted=4, accepted=4)]


def check_policy(policy: LengthPolicy | Callable[[], LengthPolicy], *, device: str = "cpu") -> None:
    """Check that a rule keeps the contract of ``LengthPolicy`` on every host; return None if it does.

    Asked: ``stop`` answers (N,) bool on the logits' device, for N of 1, 3 and 10, in float16, bfloat16 and
    float32, with -inf and NaN logits; each row's answer depends on that row only; nothing in the step is
    overwritten, and no value is read back to the host; a rule that stops on an uncertain row stops on a
    broken one; ``plan`` answers an int in 0..max_length for any context; ``begin`` and ``verified`` take
    what hosts send; a rule that says it is stateless is; one that stops before the draw needs no draw.

    Args:
        policy: a rule, of which copies are checked, or a function (a class too) that makes one.
        device: where the logits live; the check for host reads runs on torch's "meta" device in any case.

    Raises:
        PolicyError: the first broken promise, in a sentence.
    """
    make: Callable[[], LengthPolicy]
    make = partial(copy.deepcopy, policy) if isinstance(policy, LengthPolicy) else policy
    if not isinstance(make(), LengthPolicy):
        raise PolicyError(
            f"check_policy expects a LengthPolicy or a function that makes one, found {make()!r}. "
            "Derive your class from svip_adapters.LengthPolicy."
        )
    _check_plan(make())
    _check_answers(make, device)
    _check_rows(make, device)
    _check_garbage(make, device)
    _check_host_reads(make())
    _check_stateless(make(), device)


def _fail(policy: LengthPolicy, expected: str, found: str, do: str) -> PolicyError:
    return PolicyError(f"{type(policy).__name__}: expected {expected}, found {found}. {do}")


def _ladder(device: str) -> Tensor:
    """(10, V) logits from a certain row to a uniform one, so that any threshold divides them."""
    import torch

    noise = torch.randn(10, _VOCAB, generator=torch.Generator().manual_seed(0))
    noise[:, 0] = 4.0
    return (noise * torch.linspace(8.0, 0.0, 10).unsqueeze(-1)).to(device)


def _step(policy: LengthPolicy, logits: Tensor, depth: int) -> DraftStep:
    drawn = None if policy.stops_before else logits.argmax(-1)
    path = -depth * logits.float().softmax(-1).amax(-1).nan_to_num()
    return DraftStep(logits, depth=depth, path_logp=path, drawn=drawn)


def _ask(policy: LengthPolicy, logits: Tensor, depth: int) -> Tensor:
    step = _step(policy, logits.clone(), depth)
    before = _step(policy, logits, depth)
    what = f"stop to answer for {logits.dtype} logits of shape {tuple(logits.shape)}"
    try:
        answer = policy.stop(step)
    except Exception as error:
        raise _fail(policy, what, repr(error), "Make stop work for every N and float dtype.") from error
    _check_type(policy, answer, logits)
    for name in ("logits", "path_logp", "drawn"):
        old, new = getattr(before, name), getattr(step, name)
        if old is not None and not bool(((old == new) | (old != old)).all()):
            do = "The host still needs it: use operations that are not in place."
            raise _fail(policy, f"stop to leave step.{name} as it is", "other values after it", do)
    return answer


def _check_type(policy: LengthPolicy, answer: Tensor, logits: Tensor) -> None:
    import torch

    do = "Return a comparison of the step's tensors, such as step.entropy > 0.6."
    expected = f"stop to answer shape ({logits.shape[0]},), torch.bool, on {logits.device}"
    if not isinstance(answer, torch.Tensor):
        raise _fail(policy, expected, f"{type(answer).__name__} {answer!r}", do)
    if (answer.shape, answer.dtype, answer.device) != (logits.shape[:1], torch.bool, logits.device):
        raise _fail(policy, expected, f"{tuple(answer.shape)}, {answer.dtype}, on {answer.device}", do)


def _check_plan(policy: LengthPolicy) -> None:
    require_integer(type(policy).__name__, "max_length", policy.max_length, low=0)
    expected = f"plan to answer an int in 0..max_length ({policy.max_length})"
    do = "Clamp it, and let max_length be the most it can be."
    for outcome in (None, *_HISTORY):
        try:
            policy.verified(outcome) if outcome else policy.begin()
            lengths = [policy.plan(context) for context in _CONTEXTS]
        except Exception as error:
            expected = "begin(), plan(RoundContext) and verified(Outcome) to take what a host sends"
            raise _fail(policy, expected, repr(error), "Keep the signatures of LengthPolicy.") from error
        for context, length in zip(_CONTEXTS, lengths, strict=True):
            if type(length) is not int or not 0 <= length <= policy.max_length:
                raise _fail(policy, f"{expected} for {context}", repr(length), do)


def _check_answers(make: Callable[[], LengthPolicy], device: str) -> None:
    import torch

    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for rows in (1, 3, 10):
            logits = _ladder(device).to(dtype)[:rows]
            masked = logits.clone()
            masked[:, _VOCAB // 2 :] = -torch.inf
            for depth in (0, 39):
                _ask(make(), logits, depth)
                _ask(make(), masked, depth)


def _check_rows(make: Callable[[], LengthPolicy], device: str) -> None:
    logits = _ladder(device)
    for depth in _DEPTHS:
        together = _ask(make(), logits, depth).tolist()
        alone = [_ask(make(), row.unsqueeze(0), depth).item() for row in logits]
        if together != alone:
            do = "Reduce over the vocabulary (dim=-1) only: other rows are other sequences or tree nodes."
            expected = f"each row's answer to depend on that row only ({alone})"
            raise _fail(make(), expected, f"{together} for the rows together", do)


def _check_garbage(make: Callable[[], LengthPolicy], device: str) -> None:
    import torch

    logits = torch.zeros(4, _VOCAB, device=device)
    logits[1, 3] = logits[2] = torch.nan
    logits[3] = -torch.inf
    for depth in _DEPTHS:
        uniform, *broken = _ask(make(), logits, depth).tolist()
        if uniform and not all(broken):
            do = "Use the step's signals, which call such a row uncertain, or write ~(certain enough)."
            expected = "a rule that stops on a uniform row to stop on a row of NaN or of -inf"
            raise _fail(make(), expected, "that it goes on", do)


def _check_host_reads(policy: LengthPolicy) -> None:
    import torch

    # Tensors on "meta" have no data: whatever would make the host wait for a device raises on them.
    logits = torch.empty(3, _VOCAB, device="meta")
    try:
        answer = policy.stop(_step(policy, logits, 1))
    except Exception as error:
        expected = "stop to read no value back to the host, and to stay on the logits' device"
        do = (
            "Do without .item(), bool(), if, tolist(), cpu(), numpy(), nonzero() and boolean indexing, "
            "and make new tensors with step.logits.new_*()."
        )
        raise _fail(policy, expected, f"on tensors without data: {error}", do) from error
    _check_type(policy, answer, logits)


def _check_stateless(policy: LengthPolicy, device: str) -> None:
    if not policy.stateless:
        return
    fresh = _behaviour(policy, device)
    for outcome in _HISTORY:
        policy.verified(outcome)
    if _behaviour(policy, device) != fresh:
        do = "Set stateless = False: a host with several sequences then keeps one copy for each."
        expected = "a rule with stateless = True to answer the same question the same way at all times"
        raise _fail(policy, expected, "another answer after some rounds", do)


def _behaviour(policy: LengthPolicy, device: str) -> list[object]:
    plans = [policy.plan(context) for context in _CONTEXTS]
    return [plans, *(_ask(policy, _ladder(device), depth).tolist() for depth in _DEPTHS)]
