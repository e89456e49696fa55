"""The contract between a rule and a host: should the drafter go on?

One object answers on every host. A chain is a tree with one branch, so a rule is written once: it
sees N distributions at a time, one a sequence in a chain, one a live node in a tree.

Why this interface cannot bias sampling. Speculative sampling is exact whatever the draft length, as
long as the length does not depend on a token that is then thrown away. So there is no way here to
drop a drawn token: a rule that sees the draw (``drawn``) can only stop *after* it, and the token goes
to the target; a rule that stops *before* the draw (``stops_before = True``) is never shown it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from svip_adapters.errors import PolicyError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["DraftStep", "LengthPolicy", "Outcome", "RoundContext"]


@dataclass(frozen=True, kw_only=True)
class RoundContext:
    """What is known before a round of drafting.

    Attributes:
        context_length: tokens in the sequence so far, prompt included.
        remaining: most tokens that may still be drafted before the sequence reaches its limit.
        batch_size: sequences the host decodes together; 1 on single-sequence hosts.
    """

    context_length: int
    remaining: int
    batch_size: int = 1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the target made of one round of one sequence.

    Attributes:
        drafted: tokens (chain) or nodes (tree) the target verified.
        accepted: drafted tokens it accepted; the bonus token is not counted.
        depth: length of the longest drafted path; equals ``drafted`` on a chain, which is the default.
    """

    drafted: int
    accepted: int
    depth: int = -1

    def __post_init__(self) -> None:
        if self.depth < 0:
            object.__setattr__(self, "depth", self.drafted)

    @property
    def all_accepted(self) -> bool:
        """Whether no drafted path was longer than what the target accepted."""
        return self.accepted == self.depth


class DraftStep:
    """One step of drafting: N distributions, and the tokens just drawn from them.

    Args:
        logits: (N, V) raw draft logits: before temperature, top-k, top-p or penalties.
        depth: tokens drafted before this one on the same path; 0 for the first of a round.
        path_logp: (N,) draft log-probability of the path *to* each distribution, this draw not
            counted; a function is called at most once, when a rule asks. None means zeros.
        drawn: (N,) int64, the tokens just kept, or None for a rule that stops before drawing.
        log_probs: (N, V) float32 log-softmax of the logits, from a host that has computed it anyway: the
            entropy need not begin from the logits again.

    Tensors are to be read, not written. The signals below are computed when first asked for, in float32,
    and kept: ten rules that use the entropy pay for it once.
    """

    def __init__(
        self,
        logits: Tensor,
        *,
        depth: int = 0,
        path_logp: Tensor | Callable[[], Tensor] | None = None,
        drawn: Tensor | None = None,
        log_probs: Tensor | None = None,
    ) -> None:
        if logits.dim() != 2:
            raise PolicyError(
                f"DraftStep expects logits of shape (N, V), found {tuple(logits.shape)}; "
                "take the last position of each sequence (logits[:, -1]) first."
            )
        self.logits = logits
        self.depth = depth
        self.drawn = drawn
        self._path_logp = path_logp
        self._log_probs = log_probs

    @property
    def count(self) -> int:
        """N."""
        return self.logits.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the logits are, and the answer must be."""
        return self.logits.device

    @cached_property
    def log_z(self) -> Tensor:
        """(N,) log-normaliser of the logits."""
        from svip_adapters import signals

        return signals.log_normalizer(self.logits)

    @cached_property
    def entropy(self) -> Tensor:
        """(N,) entropy in nats."""
        from svip_adapters import signals

        if self._log_probs is not None:
            return signals.entropy_of_log_probs(self._log_probs)
        entropy, self.log_z = signals.entropy_and_log_z(self.logits)
        return entropy

    @cached_property
    def top1_prob(self) -> Tensor:
        """(N,) probability of the likeliest token."""
        from svip_adapters import signals

        return signals.top1_prob(self.logits, self.log_z)

    @cached_property
    def margin(self) -> Tensor:
        """(N,) probability of the likeliest token minus that of the second."""
        from svip_adapters import signals

        return signals.margin(self.logits, self.log_z)

    @cached_property
    def drawn_logp(self) -> Tensor:
        """(N,) log-probability of the drawn token at temperature 1.

        Raises:
            PolicyError: if the rule declared ``stops_before``: then nothing has been drawn yet.
        """
        if self.drawn is None:
            raise PolicyError(
                "this step has no drawn token: the policy sets stops_before = True, and a rule that stops "
                "before drawing must not depend on the draw. Use top1_prob or entropy, or set "
                "stops_before = False (the token is then kept and verified)."
            )
        from svip_adapters import signals

        return signals.token_logp(self.logits, self.drawn, self.log_z)

    @property
    def drawn_prob(self) -> Tensor:
        """(N,) probability of the drawn token at temperature 1; raises as ``drawn_logp`` does."""
        return self.drawn_logp.exp()

    @cached_property
    def path_logp(self) -> Tensor:
        """(N,) draft log-probability of the path to each distribution, this draw not counted."""
        if self._path_logp is None:
            return self.logits.new_zeros(self.logits.shape[0]).float()
        return self._path_logp() if callable(self._path_logp) else self._path_logp


class LengthPolicy(ABC):
    """Decides, draft step by draft step, whether the drafter goes on. Subclass it and write ``stop``.

    Class attributes:
        max_length: most tokens (chain) or levels (tree) drafted in one round.
        stops_before: False: ``stop`` is asked after each draw, and the token it stops at is kept and
            verified (the authors' SVIP). True: it is asked before the draw, sees ``drawn=None``, and
            where it stops nothing is drawn; a round may then draft no token at all.
        stateless: False for a rule that learns from what it sees; a host that decodes several
            sequences then keeps one copy of it for each.

    Example:
        >>> class Unsure(LengthPolicy):
        ...     def stop(self, step):
        ...         return step.top1_prob < 0.5
    """

    max_length: int = 40
    stops_before: bool = False
    stateless: bool = True

    def begin(self) -> None:  # noqa: B027 - optional hook
        """A new sequence starts: forget what was learnt from the last one, if that is wanted."""

    def plan(self, context: RoundContext) -> int:
        """Most tokens to draft this round; 0 skips drafting and the target decodes one token."""
        return self.max_length

    @abstractmethod
    def stop(self, step: DraftStep) -> Tensor:
        """Whether each distribution is the last of its path: (N,) bool on ``step.logits.device``.

        True keeps what was drawn from distribution i (the token of a chain, the children of a tree
        node), sends it to the target and draws nothing after it. Never read a value back to the
        host in here (``.item()``, ``if tensor:``): the adapter does that once a step. Not asked
        where the plan ends the draft anyway; at the sequence's end a host may ask or not.
        """

    def least_probability(self) -> float:
        """On a tree: nodes of a path no likelier than this are not verified, nor drafted on; below 1.

        By the draft's own probability of the path. Asked once a round, after ``plan``; a host's option for
        the same counts too, the larger of both.
        """
        return 0.0

    def verified(self, outcome: Outcome) -> None:  # noqa: B027 - optional hook
        """The target has verified a round. Called once a round that drafted anything."""
