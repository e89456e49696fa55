"""Replay on a sampled trace: exact for a rule that learns nothing, else an average over draws.

What was accepted is chance there (see ``sampled_recorder``): a coin a position. Given the coins a draft is a
chain like any other: the text's own tokens, the first that is refused, and what was drafted on from that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from svip_adapters.policies import parse_policy
from svip_adapters.policy import LengthPolicy

from ..policy_list import host_options
from .chain_replay import ChainReplay
from .chains import Chains, Stops, draft_chain, longest_draft, verify
from .classifier import Array
from .costs import CostModel
from .rounds import HOST_ROUNDS, Expected, Replayed, Rounds
from .trace import Text, Trace

__all__ = ["DRAWS", "SampledChains", "SampledReplay", "acceptance", "expect_chain", "realise"]

DRAWS = 16


def acceptance(text: Text) -> Tensor:
    """(P,) float64: the chance that the token drafted at each position is accepted, given the text."""
    accept = text.nodes.accept
    if accept is None:
        raise ValueError(
            "expected a text of a sampled trace, found a greedy one; look at recorded.temperature."
        )
    return accept[torch.tensor(text.nodes.starts[:-1])]


class SampledChains(Chains):
    """Drafts of a sampled text, told where each begins and what of it is accepted; rows are drafts.

    Args:
        text: with P positions.
        length: most tokens of a draft.
        begins: (B,) position of each.
        accepted: (B,) tokens of it that are accepted if it is long enough; ``P - begins``: all.
    """

    def __init__(self, text: Text, length: int, begins: Tensor, accepted: Tensor) -> None:
        first, steps = torch.tensor(text.nodes.starts), torch.arange(length)
        last = len(text.ids) - 1
        refused = (begins + accepted).clamp(max=last)
        after = steps - accepted[:, None]
        own = first[(begins[:, None] + steps).clamp(max=last)]
        rows = torch.where(after < 0, own, first[refused, None] + 1 + after)
        # Of a position's rows, all but the first are the refused token and what is drafted on from it.
        beyond = torch.where(begins + accepted > last, 0, first.diff()[refused] - 1)
        self._fill(text, rows, (accepted + beyond).clamp(max=length).tolist(), length)
        patterns = [[0] * n + [1] * (length - n) for n in range(length + 1)]
        self.ranks = [patterns[n] for n in accepted.clamp(max=length).tolist()]


def realise(text: Text, length: int, random: np.random.Generator) -> SampledChains:
    """The drafts at every position for one draw of the coins."""
    accept = acceptance(text)
    positions, total = torch.arange(len(accept)), len(accept)
    kept = torch.from_numpy(random.random(total)) < accept
    refused = torch.where(kept, total, positions).flip(0).cummin(0).values.flip(0)  # the next one's position
    return SampledChains(text, length, positions, refused - positions)


def expect_chain(text: Text, policy: LengthPolicy, rounds: Rounds, *, length: int) -> Expected:
    """Exact mean counts of one turn under a rule that learns nothing, by dynamic programming.

    A round that begins at a position is the same whatever came before: the chance of each of its ends, times
    the chance that a round begins there, is what the round contributes to the counts and to the chance that
    one begins where it ends.

    Args:
        rounds: of a host that knows the end. length: tokens recorded at most.

    Raises:
        BenchError: a draft goes on where nothing was recorded.
    """
    accept, total = acceptance(text).tolist(), len(text.ids)
    ends = [[n for n in range(min(length, total - at)) if accept[at + n] < 1] for at in range(total)]
    begins = [at for at in range(total) for _ in range(len(ends[at]) + 1)]
    accepted = [n for at in range(total) for n in (*ends[at], total - at)]
    chains = SampledChains(text, length, torch.tensor(begins), torch.tensor(accepted))
    stops, found, row = Stops(policy, chains), Expected(), 0
    chance = [1.0] + [0.0] * total  # that a round begins at each position
    policy.begin()
    for at in range(total):
        limit = longest_draft(policy, text, at, rounds, most=length) if chance[at] else 0
        reached = chance[at]
        for draft, most in enumerate((*ends[at], total - at), start=row):
            if not reached:
                break
            done = Replayed()
            drafted = draft_chain(stops, policy, chains, draft, limit, rounds.least, done)
            nodes, matched = verify(chains, draft, drafted)
            share = reached * (1 - accept[at + most]) if most < drafted else reached
            gained = min(matched + 1, total - at)
            done.add(gained=gained, length=drafted, nodes=nodes, accepted=matched)
            found.add(share, done)
            chance[at + gained] += share
            reached -= share
        row += len(ends[at]) + 1
    # Before the first round that drafts every round gains one token: whether there is one is no chance.
    found.reads = float(found.draft_steps > 0)
    return found


class SampledReplay:
    """Replays on a sampled trace of transformers.

    Args:
        trace: of it.
        draws: of what is accepted, for what cannot be had exactly: rules that learn, the host's own gate, the
            oracle. The same ones for all of them.
    """

    def __init__(self, trace: Trace, costs: CostModel | None, draws: int) -> None:
        self._trace, self._costs, self._count = trace, costs, draws
        self.fixed = ChainReplay(trace, costs, []).fixed

    def __call__(self, policy: str) -> list[Expected]:
        """What a policy does on each text, on average."""
        rule, _ = host_options(policy, {})
        chosen = None if rule == "host" else parse_policy(rule)
        if chosen is None or not chosen.stateless:
            return _means([replay(policy) for replay in self._drawn()])
        recorded = self._trace.recorded
        rounds = HOST_ROUNDS[recorded.host]
        return [expect_chain(text, chosen, rounds, length=recorded.length) for text in self._trace.texts]

    def oracle(self, costs: CostModel) -> list[Expected]:
        """The best with hindsight, which knows what will be accepted."""
        return _means([replay.oracle(costs) for replay in self._drawn()])

    def chances(self, folds: Sequence[int], kind: str) -> list[Array]:
        """See ``classifier.probabilities``; one draw's texts after another's, each draw fitted by itself."""
        return [found for replay in self._drawn() for found in replay.chances(folds, kind)]

    def planned(self, lengths: Sequence[Sequence[int]]) -> list[Expected]:
        """Drafts of lengths known beforehand, in the order of ``chances``."""
        texts = len(self._trace.texts)
        return _means(
            [
                replay.planned(lengths[draw * texts : (draw + 1) * texts])
                for draw, replay in enumerate(self._drawn())
            ]
        )

    def _drawn(self) -> Iterator[ChainReplay]:
        length = self._trace.recorded.length
        for draw in range(self._count):
            random = np.random.default_rng((draw, 1))
            yield ChainReplay(
                self._trace, self._costs, [realise(text, length, random) for text in self._trace.texts]
            )


def _means(draws: Sequence[Sequence[Replayed]]) -> list[Expected]:
    return [Expected.mean(turns) for turns in zip(*draws, strict=True)]
