"""A drafter of random weights, on the embedded target: RateOptimal turns into plain decoding.

With -rP it prints what that costs: wall time against plain decoding, after the first 50 tokens.
"""

import pytest
import torch

from svip_adapters.evaluation.hosts import load_host
from svip_adapters.evaluation.prompts import load


@pytest.mark.slow
def test_a_useless_draft_is_hardly_ever_asked():
    host = load_host("transformers", dtype="float32", device="cpu")
    torch.manual_seed(0)
    for weight in host.draft.parameters():
        weight.data.normal_(0, 0.05)

    def generate(prompt, policy, new):
        return host.generate(prompt, policy=policy, max_new_tokens=new, temperature=0.0, seed=0)

    prompts = [host.encode([{"role": "user", "content": one.turns[0]}]) for one in load("builtin", limit=4)]
    generate(prompts[0], "rate_optimal", 50)
    seconds, drafted = {"plain": 0.0, "rate_optimal": 0.0}, []
    for number, prompt in enumerate(prompts):
        order = ["plain", "rate_optimal"][:: 1 if number % 2 else -1]
        runs = {policy: generate(prompt, policy, 100) for policy in order}
        assert runs["plain"].ids == runs["rate_optimal"].ids
        drafted += runs["rate_optimal"].draft_lengths
        for policy, run in runs.items():
            seconds[policy] += run.seconds
    print(f"{seconds['rate_optimal'] / seconds['plain']:.3f} of plain's time; {sum(drafted)} tokens drafted")
    assert len(drafted) > 300
    # One try in 49 rounds; a drafted token costs at most about a forward here.
    assert sum(drafted) <= 0.03 * len(drafted)
