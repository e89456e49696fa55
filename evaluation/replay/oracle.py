"""The best that any rule could do, with hindsight: at every position the draft that pays most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .chains import Chains, verify
from .costs import CostModel
from .rounds import Replayed, Rounds
from .trees import Trees

__all__ = ["chain_oracle", "tree_oracle"]

Draft = tuple[int, int, int]  # length, nodes, accepted


def chain_oracle(
    chains: Chains, costs: CostModel, rounds: Rounds, *, most: int, widths: Sequence[int] | None = None
) -> Replayed:
    """The lengths with the least modelled time, by dynamic programming over the text's positions."""

    def outcomes(at: int) -> list[Draft]:
        """Every draft worth a thought: none beyond the first refused token."""
        longest = min(most, chains.lengths[at])
        if rounds.knows_end:
            longest = min(longest, max(0, chains.text.limit - at - 1))
        found = []
        for length in range(min(rounds.least, longest), longest + 1):
            nodes, accepted = verify(chains, at, length, widths)
            found.append((length, nodes, accepted))
            if accepted < length:
                break
        return found

    return _best(len(chains.text.ids), costs, rounds, outcomes)


def tree_oracle(trees: Trees, costs: CostModel, rounds: Rounds, *, most: int) -> Replayed:
    """The same on trees: hindsight drafts one path, the one that is accepted."""

    def outcomes(at: int) -> list[Draft]:
        run = min(most, trees.run(at))
        found = [(n, n, n) for n in range(rounds.least, run + 1)]
        return found or [(rounds.least, rounds.least, 0)]

    return _best(len(trees.text.ids), costs, rounds, outcomes)


def _best(total: int, costs: CostModel, rounds: Rounds, outcomes: Callable[[int], list[Draft]]) -> Replayed:
    first = int(rounds.free_first)
    left = [0.0] * (total + 1)  # modelled seconds from each position to the end
    chosen: dict[int, Draft] = {}
    for at in reversed(range(first, total)):

        def seconds(draft: Draft, at: int = at) -> float:
            length, nodes, accepted = draft
            return costs.round(nodes) + length * costs.step() + left[min(at + accepted + 1, total)]

        chosen[at] = min(outcomes(at), key=seconds)
        left[at] = seconds(chosen[at])
    done, at = Replayed(), first
    if rounds.free_first:
        done.add(gained=1)
    while at < total:
        length, nodes, accepted = chosen[at]
        gained = min(accepted + 1, total - at)
        done.draft[1] += length
        done.add(gained=gained, length=length, nodes=nodes, accepted=min(accepted, gained))
        at += gained
    return done
