"""The tree builder on broken distributions, wrong answers and sizes that make no sense."""

import math

import pytest
import torch
from trees import Chain, Never, paths_of, shape

from svip_adapters import SVIP, LengthPolicy, PolicyError, UnsupportedHostError
from svip_adapters.adapters.draft_tree import grow


def test_a_wrong_answer_is_named():
    class Wrong(LengthPolicy):
        def stop(self, step):
            return torch.zeros(7, dtype=torch.bool)

    with pytest.raises(PolicyError, match=r"Wrong\.stop: expected torch\.bool of shape \(1,\)"):
        grow(Chain(), Wrong(), shape(), ordered=False)


def test_a_mean_is_refused_for_a_rule_that_does_not_look_at_the_entropy():
    with pytest.raises(PolicyError, match=r'level_rule="mean", found .*Never'):
        grow(Chain(), Never(), shape(level_rule="mean"), ordered=False)


@pytest.mark.parametrize("level_rule", ["branch", "best", "mean"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_broken_distributions_end_in_a_tree(level_rule, garbage):
    """A NaN row of the draft once made an endless loop: its children took a place without their parent."""
    clean = Chain().table[0].topk(3).indices
    for broken in [[0], clean[:1].tolist(), clean.tolist()]:
        for policy in (None, Never(), SVIP(threshold=1.0)):
            if level_rule == "mean" and not isinstance(policy, SVIP):
                continue
            drafter = Chain()
            drafter.table[broken] = garbage
            tree = grow(drafter, policy, shape(budget=30, levels=5, level_rule=level_rule), ordered=True).tree
            nodes = paths_of(tree)
            assert len(nodes) > 1
            assert all(path[:-1] in nodes for path in nodes)
            assert not any(0 in broken or set(path[:-1]) & set(broken) for path in nodes if len(path) > 1)


def test_a_broken_row_of_no_weight_does_not_keep_a_level_going():
    drafter = Chain()
    drafter.table[0] = torch.tensor([-200.0] * 9 + [0.0, -190.0])  # token 9 for certain, then 10
    drafter.table[10] = math.nan
    grown = grow(drafter, SVIP(threshold=1.2), shape(top_k=2, levels=9, level_rule="mean"), ordered=False)
    assert grown.early


def test_what_a_policy_writes_reaches_no_tree():
    class Writes(LengthPolicy):
        def stop(self, step):
            step.drawn.fill_(3)
            return step.entropy > 99

    assert paths_of(grow(Chain(), Writes(), shape(), ordered=False).tree) == paths_of(
        grow(Chain(), Never(), shape(), ordered=False).tree
    )


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"budget": -2}, {"top_k": 0}, {"levels": 0}])
def test_a_tree_of_no_size_is_named(wrong):
    with pytest.raises(UnsupportedHostError, match=rf"a {next(iter(wrong))} of at least 1, found"):
        shape(**wrong)


def test_a_level_wider_than_the_vocabulary_is_named():
    with pytest.raises(UnsupportedHostError, match="at least top_k = 12 tokens, found 11"):
        grow(Chain(), Never(), shape(top_k=12), ordered=False)
