"""The adapter's trees through upstream's own verification at a temperature: the target's law."""

import os
import random

import pytest
import torch
from laws import TEMPERATURE, p_value, tables
from test_tree_sampling import transitions
from upstream_eagle import use_checkout

from svip_adapters import parse_policy

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.skipif("EAGLE_HOME" not in os.environ, reason="EAGLE_HOME names no checkout"),
]


RULES = [None, "fixed:2", "svip:0.3", "svip:0.6", "svip:threshold=0.5,stops_before=True"]


@pytest.mark.parametrize("rule", RULES)
def test_eagle_keeps_the_targets_distribution(rule):
    use_checkout()
    from eagle.model.utils import evaluate_posterior, prepare_logits_processor

    processor = prepare_logits_processor(temperature=TEMPERATURE, top_p=0.0, top_k=0)
    random.seed(0)

    def verify(tokens, paths, logits, temperature):
        candidates = torch.tensor([*tokens, -1])[paths]
        best, accepted, law = evaluate_posterior(logits[paths], candidates, processor)
        path = paths[best, : int(accepted) + 1].tolist()
        return path, int(law.multinomial(1))

    counts, accepted = transitions(rule and parse_policy(rule), 40_000, verify)
    p = p_value(counts, tables()[0])
    print(f"{rule}: p = {p:.3f}, {accepted} accepted")
    assert 0 < accepted < counts.sum()
    assert p > 0.01 / len(RULES)  # one in a hundred of all of them together
