"""A policy of the command line on a whole trace."""

from __future__ import annotations

from collections.abc import Sequence

from svip_adapters.adapters._eagle_layer import Options
from svip_adapters.adapters._glide_host import SLACK, draft_limit
from svip_adapters.adapters.draft_tree import TreeShape
from svip_adapters.policies import Fixed, parse_policy
from svip_adapters.policy import LengthPolicy

from ..errors import BenchError
from ..hosts.glide import OPTIONS
from ..hosts.tree_rules import PRUNING, SHAPE
from ..policy_list import host_options, rule_of
from .chains import Chains, replay_chain
from .classifier import Array, Planned, probabilities
from .costs import CostModel
from .gate import replay_gate
from .oracle import chain_oracle, tree_oracle
from .rounds import HOST_ROUNDS, Replayed
from .trace import Text, Trace
from .trees import Trees, replay_tree

__all__ = ["Replaying"]

# Candidates for the best fixed setting.
LENGTHS = (*range(11), 12, 16, 20, 30, 40)
DEPTHS, NODES = range(8), (1, 2, 3, 4, 6, 8, 12, 16, 24, 40, 59)


class ChainReplay:
    """Replays on transformers and GliDe.

    Args:
        trace: of one of them.
    """

    def __init__(self, trace: Trace, costs: CostModel | None) -> None:
        self._recorded, self._costs = trace.recorded, costs
        self._rounds = HOST_ROUNDS[trace.recorded.host]
        self._texts = [Chains(text, trace.recorded.length) for text in trace.texts]
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


class TreeReplay:
    """Replays on EAGLE-2.

    Args:
        trace: of it.
    """

    def __init__(self, trace: Trace, costs: CostModel | None) -> None:
        self._recorded, self._rounds = trace.recorded, HOST_ROUNDS[trace.recorded.host]
        self._costs = costs
        self._texts = [Trees(text) for text in trace.texts]

    def __call__(self, policy: str) -> list[Replayed]:
        """What a policy does on each text; ``host`` is the host's own tree."""
        rule, options = host_options(policy, SHAPE if rule_of(policy) == "host" else SHAPE | PRUNING)
        limits = self._recorded.limits | {name: options.pop(name) for name in SHAPE if name in options}
        pruning = Options(**options)
        shape = TreeShape(
            budget=limits["total_tokens"],
            top_k=limits["top_k"],
            levels=limits["depth"] + 1 if pruning.max_depth is None else pruning.max_depth,
            min_probability=pruning.min_probability,
            level_rule=pruning.level_rule,
        )
        chosen = None if rule == "host" else parse_policy(rule)
        return [replay_tree(trees, chosen, self._rounds, shape, self._costs) for trees in self._texts]

    def oracle(self, costs: CostModel) -> list[Replayed]:
        """The best with hindsight, within what was recorded."""
        most = self._recorded.length
        return [tree_oracle(trees, costs, self._rounds, most=most) for trees in self._texts]

    def fixed(self) -> list[str]:
        """Trees of a fixed depth and size to choose the best of."""
        deepest = min(self._recorded.limits["depth"], self._recorded.length - 1)
        depths = [d for d in DEPTHS if d <= deepest]
        nodes = [n for n in NODES if n <= self._recorded.limits["total_tokens"]]
        return [f"host@depth={d},total_tokens={n}" for d in depths for n in nodes if n > d]


def plain(text: Text) -> Replayed:
    """The target alone, one forward a token; the first comes with the prompt's."""
    done = Replayed()
    for _ in text.ids:
        done.add(gained=1)
    return done


class Replaying:
    """Replays policies on a trace; ``plain`` is the target alone.

    Args:
        trace: recorded.
        costs: of a machine, for rules that measure time.

    Raises:
        BenchError: (when made) a host that is not replayed; (when called) an option it does not take.
    """

    def __init__(self, trace: Trace, costs: CostModel | None = None) -> None:
        host = trace.recorded.host
        if host not in HOST_ROUNDS:
            raise BenchError(f"expected a trace of {', '.join(HOST_ROUNDS)}, found one of {host!r}.")
        self._trace = trace
        self._host = (
            TreeReplay(trace, costs) if "depth" in trace.recorded.limits else ChainReplay(trace, costs)
        )
        self.oracle, self.fixed = self._host.oracle, self._host.fixed
        self.chains = self._host if isinstance(self._host, ChainReplay) else None

    def __call__(self, policy: str) -> list[Replayed]:
        """What a policy does on each text."""
        return [plain(text) for text in self._trace.texts] if policy == "plain" else self._host(policy)
