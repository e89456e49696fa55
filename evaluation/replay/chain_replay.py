"""A policy of the command line on the chains of a whole trace."""

from __future__ import annotations

from collections.abc import Sequence

from svip_adapters.adapters._glide_host import SLACK, draft_limit
from svip_adapters.policies import Fixed, parse_policy
from svip_adapters.policy import LengthPolicy

from ..hosts.glide import OPTIONS
from ..policy_list import host_options, rule_of
from .chains import Chains, replay_chain
from .classifier import Array, Planned, probabilities
from .costs import CostModel
from .gate import replay_gate
from .oracle import chain_oracle
from .rounds import HOST_ROUNDS, Replayed
from .trace import Trace

__all__ = ["ChainReplay"]

# Candidates for the best fixed setting.
LENGTHS = (*range(11), 12, 16, 20, 30, 40)


class ChainReplay:
    """Replays on transformers and GliDe.

    Args:
        trace: of one of them.
        texts: its chains.
    """

    def __init__(self, trace: Trace, costs: CostModel | None, texts: Sequence[Chains]) -> None:
        self._recorded, self._costs = trace.recorded, costs
        self._rounds = HOST_ROUNDS[trace.recorded.host]
        self._texts = texts
        limits = trace.recorded.limits
        self._widths = limits.get("prob_to_top")
        self._options = OPTIONS if "max_length" in limits else {}

    def __call__(self, policy: str) -> list[Replayed]:
        """What a policy does on each text; ``host`` is the host's own default."""
        rule, options = host_options(policy, {} if rule_of(policy) == "host" else self._options)
        limits = self._recorded.limits | options
        if rule == "host" and "drafted" not in limits:
            refit = self._recorded.versions.get("scikit-learn", "absent") != "absent"
            return [replay_gate(chains, refit=refit) for chains in self._texts]
        own = rule == "host"
        chosen: LengthPolicy = Fixed(limits["drafted"]) if own else parse_policy(rule)
        if own:
            most = limits["drafted"]
        elif "max_length" in limits:
            most = draft_limit(self._recorded.limits["max_length"], options.get("max_length"))
        else:
            most = self._recorded.length + 1  # the host has no limit: to draft so much is an error here
        return [
            replay_chain(chains, chosen, self._rounds, most=most, widths=self._widths, costs=self._costs)
            for chains in self._texts
        ]

    def chances(self, folds: Sequence[int], kind: str) -> list[Array]:
        """See ``classifier.probabilities``."""
        return probabilities(self._texts, folds, kind)

    def planned(self, lengths: Sequence[Sequence[int]]) -> list[Replayed]:
        """Drafts of lengths known beforehand, of each text's positions."""
        rounds, most = self._rounds, self._recorded.length
        if "max_length" in self._recorded.limits:
            most = min(most, SLACK)
        return [
            replay_chain(
                chains,
                Planned([min(n, most) for n in known], chains.text.prompt_length),
                rounds,
                most=most,
                widths=self._widths,
            )
            for chains, known in zip(self._texts, lengths, strict=True)
        ]

    def oracle(self, costs: CostModel) -> list[Replayed]:
        """The best with hindsight, within what was recorded."""
        most = self._recorded.length
        return [
            chain_oracle(chains, costs, self._rounds, most=most, widths=self._widths)
            for chains in self._texts
        ]

    def fixed(self) -> list[str]:
        """Fixed lengths to choose the best of."""
        longest, option = self._recorded.length, ""
        if "max_length" in self._recorded.limits:
            longest, option = min(longest, SLACK), f"@max_length={min(longest, SLACK)}"
        lengths = [n for n in LENGTHS if self._rounds.least <= n <= longest]
        return [f"fixed:{n}{option}" for n in lengths]
