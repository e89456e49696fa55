"""A policy of the command line on a whole trace."""

from __future__ import annotations

from collections.abc import Sequence

from svip_adapters.adapters._eagle_layer import Options
from svip_adapters.adapters.draft_tree import TreeShape
from svip_adapters.policies import parse_policy

from ..errors import BenchError
from ..hosts.tree_rules import PRUNING, SHAPE
from ..policy_list import host_options, rule_of
from .chain_replay import ChainReplay
from .chains import Chains
from .costs import CostModel
from .oracle import tree_oracle
from .rounds import HOST_ROUNDS, Replayed, Turn
from .sampling import DRAWS, SampledReplay
from .trace import Text, Trace
from .trees import Trees, replay_tree

__all__ = ["Replaying"]

# Candidates for the best fixed setting.
DEPTHS, NODES = range(8), (1, 2, 3, 4, 6, 8, 12, 16, 24, 40, 59)


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
        draws: of a sampled trace, see ``SampledReplay``.

    Raises:
        BenchError: (when made) a host that is not replayed; (when called) an option it does not take.
    """

    def __init__(self, trace: Trace, costs: CostModel | None = None, draws: int = DRAWS) -> None:
        host = trace.recorded.host
        if host not in HOST_ROUNDS:
            raise BenchError(f"expected a trace of {', '.join(HOST_ROUNDS)}, found one of {host!r}.")
        self._trace = trace
        self._host = _host(trace, costs, draws)
        self.oracle, self.fixed = self._host.oracle, self._host.fixed
        self.chains = None if isinstance(self._host, TreeReplay) else self._host

    def __call__(self, policy: str) -> Sequence[Turn]:
        """What a policy does on each text."""
        return [plain(text) for text in self._trace.texts] if policy == "plain" else self._host(policy)


def _host(trace: Trace, costs: CostModel | None, draws: int) -> ChainReplay | SampledReplay | TreeReplay:
    if "depth" in trace.recorded.limits:
        return TreeReplay(trace, costs)
    if trace.recorded.temperature:
        return SampledReplay(trace, costs, draws)
    return ChainReplay(trace, costs, [Chains(text, trace.recorded.length) for text in trace.texts])
