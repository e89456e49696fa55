"""What a classifier could reach: most of the gap where the draft's signals tell all, little where nothing."""

import random

import pytest
import torch

from svip_adapters.evaluation.replay.classifier import lengths_at
from svip_adapters.evaluation.replay.costs import CostModel
from svip_adapters.evaluation.replay.nodes import Nodes
from svip_adapters.evaluation.replay.table import Table
from svip_adapters.evaluation.replay.trace import Recorded, Text, Trace
from svip_adapters.evaluation.replay.tune import tune

pytest.importorskip("sklearn")

LENGTH, TOKENS, TEXTS = 6, 40, 12
COSTS = CostModel({1: 1.0}, {1: 0.3}, (0.0, 0.0), 0.0, 0.0, 0.0, {})
RECORDED = Recorded("transformers", "t", "d", "float32", {}, {}, TOKENS, LENGTH, 1, 0.0, {})


def made_up(seed, telling):
    """A text whose drafts are right for 0 to 6 tokens; the entropy tells whether the next is, or nothing."""
    pick = random.Random(seed)
    tokens, entropy = [], []
    for _ in range(TOKENS):
        right = pick.choice([0, 0, 0, 1, 5, 6])
        tokens += [7 if step < right else 9 for step in range(LENGTH)]
        entropy += [0.1 if step + 1 < right else 2.0 for step in range(LENGTH)]
    if not telling:
        pick.shuffle(entropy)
    flat, rows = torch.tensor(entropy), TOKENS * LENGTH
    nodes = Nodes(
        starts=list(range(0, rows + 1, LENGTH)),
        parents=torch.tensor([i - 1 if i % LENGTH else -1 for i in range(rows)]),
        children=torch.zeros(rows, dtype=torch.long),
        tokens=torch.tensor(tokens)[:, None],
        logp=-flat[:, None],
        entropy=flat,
        top1_prob=(-flat).exp(),
        margin=(-flat).exp(),
    )
    return Text("a", seed, 0, 5, [7] * TOKENS, [7] * LENGTH, TOKENS, nodes)


@pytest.mark.parametrize(("telling", "low", "high"), [(True, 0.6, 1.0), (False, -0.3, 0.3)])
def test_it_closes_as_much_as_the_signals_tell(telling, low, high):
    trace = Trace(RECORDED, [made_up(seed, telling) for seed in range(TEXTS)])
    found = {one.rule: one for one in tune(Table(trace, COSTS), folds=3)}
    assert low <= found["classifier"].gap_closed <= high
    assert found["classifier"].gap_closed >= found["svip"].gap_closed - 0.1


def test_lengths_end_at_the_first_token_that_is_not_worth_it():
    chances = torch.tensor([[0.9, 0.4, 0.8], [0.1, 0.9, 0.9]]).numpy()
    assert lengths_at(chances, 0.5) == [1, 0]
    assert lengths_at(chances, 0.3) == [3, 0]
