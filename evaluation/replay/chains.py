"""Replay of a rule on chains: exactly the rounds that a live run has in which these tokens are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from svip_adapters.adapters._bridge import ask, plan_length
from svip_adapters.policy import LengthPolicy, Outcome, RoundContext

from ..errors import BenchError
from .costs import CostModel
from .rounds import Replayed, Rounds, keep_time
from .steps import RecordedStep
from .trace import Text

__all__ = ["Chains", "Stops", "draft_chain", "longest_draft", "replay_chain", "too_short", "verify"]


class Chains:
    """One text's chains as tables; rows are positions, columns steps.

    Attributes:
        logp, scaled: of the drawn tokens at temperature 1, and at the one that they were sampled at.
        path_logp: of all before each. lengths: tokens recorded at each position. ended: whether that draft
            came to the sequence's end.
        ranks: which of the draft's tokens the target says where all before it agreed: 0 for the drawn one,
            k for none of them.
    """

    def __init__(self, text: Text, length: int) -> None:
        steps, first = torch.arange(length), torch.tensor(text.nodes.starts)
        if not len(text.nodes):  # an answer of one token, which no draft went before
            steps = steps[:0]
        self._fill(text, first[:-1, None] + steps, first.diff().tolist(), length)
        self.ranks = self._ranks(text.said, steps)

    def _fill(self, text: Text, rows: Tensor, lengths: list[int], length: int) -> None:
        nodes = text.nodes
        self.text, self.nodes, self.lengths = text, nodes, lengths
        self.ended = [n < length for n in lengths]
        # Beyond what was recorded, any row stands in: it is never looked at.
        self._rows = rows.clamp(max=max(len(nodes) - 1, 0))
        self.logp = nodes.logp[self._rows, 0]
        self.path_logp = self.logp.cumsum(1) - self.logp
        self.scaled = self.logp if nodes.scaled is None else nodes.scaled[self._rows]

    def _ranks(self, said: Sequence[int], steps: Tensor) -> list[list[int]]:
        k = self.nodes.tokens.shape[1]
        padded = torch.tensor([*said, *[-1] * len(steps)])
        wanted = padded[torch.arange(len(self.lengths))[:, None] + steps]
        same = self.nodes.tokens[self._rows] == wanted[..., None]
        found = torch.where(same.any(-1), same.int().argmax(-1), k)
        agrees = (found == 0).long().cumprod(1)
        reached = torch.cat((torch.ones_like(agrees[:, :1]), agrees[:, :-1]), dim=1) > 0
        recorded = steps < torch.tensor(self.lengths)[:, None]
        return torch.where(reached & recorded, found, k).tolist()

    def table(self, signal: str) -> Any:
        """(P, L) float32 array of a signal of ``Nodes``; beyond what was recorded, any number."""
        return getattr(self.nodes, signal)[self._rows].numpy()

    def step(self, positions: Tensor, depth: int, *, hidden: bool) -> RecordedStep:
        """What a rule sees at step ``depth`` of the drafts at ``positions`` (N,)."""
        rows = self._rows[positions, depth]
        drawn = None if hidden else self.nodes.tokens[rows, 0].clone()
        return RecordedStep(
            self.nodes, rows, depth=depth, path_logp=self.path_logp[positions, depth], drawn=drawn
        )


class Stops:
    """Where a rule stops: asked draft by draft, or, of a rule that learns nothing, all at once beforehand."""

    def __init__(self, policy: LengthPolicy, chains: Chains) -> None:
        self._policy, self._chains = policy, chains
        self._known: list[list[bool]] | None = None
        if policy.stateless and len(chains.nodes):
            rows = torch.arange(len(chains.lengths))
            columns = [self._ask(rows, depth) for depth in range(chains.logp.shape[1])]
            self._known = torch.stack(columns, dim=1).tolist()

    def __call__(self, position: int, depth: int) -> bool:
        if self._known is not None:
            return self._known[position][depth]
        return bool(self._ask(torch.tensor([position]), depth))

    def _ask(self, rows: Tensor, depth: int) -> Tensor:
        answer: Tensor = ask(self._policy, self._chains.step(rows, depth, hidden=self._policy.stops_before))
        return answer


def replay_chain(
    chains: Chains,
    policy: LengthPolicy,
    rounds: Rounds,
    *,
    most: int,
    widths: Sequence[int] | None = None,
    costs: CostModel | None = None,
) -> Replayed:
    """One turn under a rule.

    Args:
        costs: of a machine; a rule that measures time then measures this one's.
        most: tokens that the host drafts at most.
        widths: CaPE's table (see ``expand``); None drafts chains.

    Raises:
        BenchError: a draft goes on where nothing was recorded.
    """
    text, done, stops = chains.text, Replayed(), Stops(policy, chains)
    keep_time(policy, done, costs)
    total, at = len(text.ids), int(rounds.free_first)
    policy.begin()
    if rounds.free_first:
        done.add(gained=1)
    while at < total:
        limit = longest_draft(policy, text, at, rounds, most=most)
        length = draft_chain(stops, policy, chains, at, limit, rounds.least, done)
        nodes, matched = verify(chains, at, length, widths)
        gained = min(matched + 1, total - at)
        done.add(gained=gained, length=length, nodes=nodes, accepted=min(matched, gained))
        at += gained
        if length and (rounds.reports_last or at < total):
            policy.verified(Outcome(drafted=nodes, accepted=matched, depth=length))
    return done


def longest_draft(policy: LengthPolicy, text: Text, at: int, rounds: Rounds, *, most: int) -> int:
    """Tokens that a round after ``at`` tokens drafts at most; ``most``: as in ``replay_chain``."""
    left = max(0, text.limit - at - 1) if rounds.knows_end else most
    context = RoundContext(context_length=text.prompt_length + at, remaining=left)
    return max(plan_length(policy, context), rounds.least) if left else 0


def draft_chain(
    stops: Stops,
    policy: LengthPolicy,
    chains: Chains,
    at: int,
    limit: int,
    least: int,
    done: Replayed,
) -> int:
    """Tokens sent to the target of the draft in row ``at``; its steps are counted in ``done``."""
    for step in range(limit):
        if step == chains.lengths[at]:
            if not chains.ended[at]:
                raise too_short(step)
            return step
        done.draft[1] += 1
        if (policy.stops_before or step + 1 < limit) and stops(at, step):
            return max(step if policy.stops_before else step + 1, least)
    return limit


def too_short(length: int) -> BenchError:
    """A rule drafts on where nothing was recorded."""
    return BenchError(
        f"expected drafts of at most {length} tokens, which is what was recorded, found a rule that drafts "
        f"on; give it a max_length of {length}, or record again with a larger --length."
    )


def verify(chains: Chains, at: int, length: int, widths: Sequence[int] | None = None) -> tuple[int, int]:
    """Nodes sent to the target, and how many tokens of them it accepts."""
    ranks = chains.ranks[at][:length]
    matched = next((i for i, rank in enumerate(ranks) if rank), length)
    if widths is None or not length:
        return length, matched
    first = chains.nodes.starts[at]
    tenths = (10 * chains.nodes.top1_prob[first : first + length]).int().tolist()
    wide = [widths[tenth] for tenth in tenths]
    beside = matched < length and ranks[matched] < wide[matched]
    return sum(wide), matched + beside
