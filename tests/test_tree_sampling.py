"""Sampling from draft trees draws from the target's law, whatever the rule: a chi-square test."""

import functools

import pytest
import torch
from laws import TEMPERATURE, TOKENS, p_value, tables
from rules import RULES

from svip_adapters import parse_policy
from svip_adapters.adapters._tree_steps import DraftedFrontier
from svip_adapters.adapters.draft_tree import TreeShape, grow
from svip_adapters.evaluation.hosts.tree_verify import accept

STATELESS = [rule for rule in RULES if parse_policy(rule).stateless]
SHAPE = TreeShape(budget=7, top_k=3, levels=4)


class Chain:
    """A drafter over a table, after a context that ends in ``last``."""

    def __init__(self, table, last):
        self.table, self.last = table, last

    def first(self):
        return DraftedFrontier(self.table[self.last : self.last + 1])

    def next(self, tokens, rows):
        return DraftedFrontier(self.table[tokens])

    def target_ids(self, tokens):
        return tokens


def transitions(policy, draws, verify=accept):
    """(V, V) counts of successive tokens over at least ``draws``, and how many of them were accepted."""
    target, draft = tables()
    counts, accepted, last = torch.zeros(TOKENS, TOKENS, dtype=torch.float64), 0, 0

    @functools.cache
    def tree_after(token):
        tree = grow(Chain(draft, token), policy, SHAPE, ordered=True).tree
        tokens = [token, *tree.tokens.tolist()]
        return tokens, tree.paths, target[tokens]

    torch.manual_seed(1)
    while counts.sum() < draws:
        tokens, paths, logits = tree_after(last)
        path, token = verify(tokens, paths, logits, TEMPERATURE)
        for new in (*(tokens[node] for node in path[1:]), token):
            counts[last, new] += 1
            last = new
        accepted += len(path) - 1
    return counts, accepted


def keeps_what_it_refused(tokens, paths, logits, temperature):
    """Wrong on purpose: the token after a refusal is drawn without taking the refused ones out."""
    path, _ = accept(tokens, paths, logits, temperature)
    left = (logits[path[-1]] / temperature).softmax(-1)
    return path, int(left.multinomial(1))


@pytest.mark.parametrize("rule", [None, "svip:0.5", "svip:threshold=0.5,stops_before=True"])
def test_sampling_is_exact(rule):
    counts, accepted = transitions(rule and parse_policy(rule), 4_000)
    assert 0 < accepted < counts.sum()
    assert p_value(counts, tables()[0]) > 0.01


def test_a_biased_verification_fails():
    counts, _ = transitions(None, 4_000, keeps_what_it_refused)
    assert p_value(counts, tables()[0]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("rule", [None, *STATELESS])
def test_sampling_is_exact_on_50_000_draws(rule):
    counts, accepted = transitions(rule and parse_policy(rule), 50_000)
    p = p_value(counts, tables()[0])
    print(f"{rule}: p = {p:.3f}, {accepted} accepted")
    assert 0 < accepted < counts.sum()
    assert p > 0.01
