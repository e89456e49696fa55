"""Trees of a made-up drafter: what they hold under every rule, and the arrays that describe them."""

import math

import pytest
import torch
from rules import ENTROPY_RULES, RULES
from trees import Chain, Never, V, paths_of, shape

from svip_adapters import LengthPolicy, parse_policy
from svip_adapters.adapters.draft_tree import grow


def logp(drafter, path):
    table, total, last = drafter.table.log_softmax(-1), 0.0, 0
    for token in path:
        total, last = total + float(table[last, token]), token
    return total


def beam(drafter, levels, top_k, budget):
    """EAGLE-2's tree by the paper, over tuples: expand the best k of each level, keep the best of all."""
    table, frontier, found = drafter.table.log_softmax(-1), [()], {}
    for _ in range(levels):
        children = {}
        for path in frontier:
            best = table[path[-1] if path else 0].topk(top_k)
            for token in best.indices.tolist():
                children[(*path, token)] = logp(drafter, (*path, token))
        found |= children
        frontier = sorted(children, key=children.get, reverse=True)[:top_k]
    return set(sorted(found, key=found.get, reverse=True)[:budget])


@pytest.mark.parametrize("seed", range(5))
def test_without_a_stop_it_is_the_papers_tree(seed):
    grown = grow(Chain(seed), Never(), shape(), ordered=False)
    assert set(paths_of(grown.tree)) - {()} == beam(Chain(seed), 4, 3, 12)
    assert (grown.levels, grown.early) == (4, False)


CASES = [(rule, level) for rule in RULES for level in ("branch", "best")]
CASES += [(rule, "mean") for rule in ENTROPY_RULES]


@pytest.mark.parametrize(("rule", "level_rule"), CASES)
def test_arrays_describe_one_tree_under_every_rule(rule, level_rule):
    for seed in range(4):
        grown = grow(
            Chain(seed), parse_policy(rule), shape(levels=6, level_rule=level_rule), ordered=seed % 2
        )
        tree, count = grown.tree, len(grown.tree.tokens) + 1
        nodes = paths_of(tree)
        assert 2 <= count <= 13
        assert len(set(nodes)) == count
        assert all(path[:-1] in nodes for path in nodes)
        assert tree.depths.tolist() == [len(path) for path in nodes]
        assert tree.mask.tolist() == [[a == b[: len(a)] for a in nodes] for b in nodes]
        leaves = {path for path in nodes if not any(other[:-1] == path for other in nodes if other)}
        rows = [[node for node in row if node >= 0] for row in tree.paths.tolist()]
        assert {nodes[row[-1]] for row in rows} == leaves
        assert len(rows) == len(leaves)
        for row, padded in zip(rows, tree.paths.tolist(), strict=True):
            assert [nodes[node] for node in row] == [nodes[row[-1]][:i] for i in range(len(row))]
            assert padded[: len(row)] == row  # filled up at the end only
        if seed % 2:
            assert rows == sorted(rows, key=lambda row: [*row, count + 5])
        assert tree.depth == max(map(len, nodes)) <= grown.levels


class StopAt(LengthPolicy):
    """Stops nodes whose last token is one of these; the root's distribution is row 0 of the table."""

    def __init__(self, drafter, tokens, before=False):
        self.drafter, self.tokens, self.stops_before = drafter, torch.tensor(tokens), before

    def stop(self, step):
        return torch.isin(self.drafter.asked[-1], self.tokens)


def test_children_of_a_stopped_node_are_leaves():
    drafter = Chain()
    free = set(paths_of(grow(Chain(), Never(), shape(budget=99), ordered=False).tree))
    inner = {path[0] for path in free if len(path) > 2}
    stopped = [min(inner)]
    nodes = set(paths_of(grow(drafter, StopAt(drafter, stopped), shape(budget=99), ordered=False).tree))
    below = [path for path in nodes if set(path[:-1]) & set(stopped)]
    assert below
    assert all(path[-2] in stopped and not set(path[:-2]) & set(stopped) for path in below)


def test_a_rule_that_stops_before_drawing_leaves_no_children():
    drafter = Chain()
    rule = StopAt(drafter, [1, 2, 3, 4, 5], before=True)
    nodes = set(paths_of(grow(drafter, rule, shape(budget=99), ordered=False).tree))
    assert any(len(path) > 1 for path in nodes)
    assert not any(set(path[:-1]) & {1, 2, 3, 4, 5} for path in nodes)


@pytest.mark.parametrize("before", [False, True])
def test_one_node_is_always_drafted(before):
    drafter = Chain()
    grown = grow(drafter, StopAt(drafter, list(range(V)), before), shape(), ordered=False)
    assert (grown.levels, grown.early) == (1, True)
    assert len(grown.tree.tokens) == (1 if before else 3)
    assert grown.tree.tokens[0] - 100 == drafter.table[0].argmax()


def test_improbable_nodes_are_neither_sent_nor_drafted_on():
    drafter, narrow = Chain(), Chain()
    everything = paths_of(grow(drafter, Never(), shape(budget=99), ordered=False).tree)
    grown = grow(narrow, Never(), shape(budget=99, min_probability=0.1, levels=9), ordered=False)
    kept = paths_of(grown.tree)
    assert grown.levels == len(narrow.asked) == max(map(len, kept)) + 1
    assert not grown.early
    parents = {path[-1] for path in kept if path}
    assert all(set(asked.tolist()) <= parents for asked in narrow.asked[1:])
    assert sum(map(len, narrow.asked)) <= len(kept)
    assert set(kept) == {path for path in everything if math.exp(logp(drafter, path)) > 0.1}
    assert 1 < len(kept) < len(everything)
    assert len(paths_of(grow(Chain(), Never(), shape(min_probability=0.999), ordered=False).tree)) == 2


def test_a_certain_path_has_no_orphans():
    """A child as likely as its parent (probability 1) must not be taken without it."""
    drafter = Chain()
    drafter.table = torch.full((V, V), -200.0)
    drafter.table[torch.arange(V), (torch.arange(V) + 1) % V] = 200.0
    for budget in range(1, 7):
        tree = grow(drafter, Never(), shape(budget=budget, levels=8), ordered=False).tree
        assert paths_of(tree)[1:] == [tuple(range(1, n + 1)) for n in range(1, budget + 1)]


def test_fewer_candidates_than_the_budget_is_a_smaller_tree():
    assert len(grow(Chain(), Never(), shape(budget=50, levels=1), ordered=False).tree.tokens) == 3


def test_each_rule_of_a_level_sees_what_it_says():
    """best: one answer for all; mean: the same entropy for all, weighted by path probability."""
    seen = {}

    class Sees(LengthPolicy):
        def stop(self, step):
            seen.setdefault(rule, []).append((step.entropy, step.path_logp, step.logits, step.drawn))
            return step.entropy > 1e9

    for rule in ("branch", "best", "mean"):
        grow(Chain(), Sees(), shape(level_rule=rule), ordered=False)
    for own, mean in zip(seen["branch"], seen["mean"], strict=True):
        expected = (own[1].exp() * own[0]).sum() / own[1].exp().sum()
        torch.testing.assert_close(mean[0], expected.expand_as(mean[0]))
    for entropy, _, logits, drawn in seen["branch"]:
        expected = torch.distributions.Categorical(logits=logits).entropy()
        torch.testing.assert_close(entropy, expected)
        assert torch.equal(drawn, logits.argmax(-1))


def test_the_likeliest_node_decides_for_its_level():
    asked = []

    class Second(LengthPolicy):
        """Stops every node but the likeliest of a level, on the second level; everything on the third."""

        def stop(self, step):
            asked.append(len(step.logits))
            best = step.path_logp == step.path_logp.max()
            return ~best if len(asked) < 3 else best

    grown = grow(Chain(), Second(), shape(level_rule="best", levels=9), ordered=False)
    assert (grown.levels, grown.early, asked) == (3, True, [1, 3, 3])
