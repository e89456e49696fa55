"""Sampling with GliDe and with CaPE draws from the target's law, patched or not: a chi-square test."""

from types import SimpleNamespace

import pytest
import torch
from laws import TEMPERATURE, TOKENS, p_value, tables

from svip_adapters import parse_policy, patch_glide
from svip_adapters.evaluation.hosts import glide_model
from svip_adapters.evaluation.hosts.glide_model import GlideModel
from svip_adapters.evaluation.hosts.glide_tree import ALONE

STOPPING = [None, "svip:0.5", "svip:threshold=0.5,stops_before=True"]
WIDE = (4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2)


class Words:
    """Stands for a target, or a drafter, whose state after a token is that token."""

    def __init__(self, table):
        self.lm_head = torch.nn.Linear(TOKENS, TOKENS, bias=False)
        self.lm_head.weight.data = table.T.contiguous()
        self.config = SimpleNamespace(block_size=5)
        self.generation_config = SimpleNamespace(eos_token_id=None)

    def forward(self, input_ids, past_key_values=None):
        """Only its parameters are looked at."""

    def model(self, input_ids, past_key_values, **_):
        keys = torch.zeros(1, 1, input_ids.shape[1], 1)
        past_key_values.update(keys, keys, 0)
        return SimpleNamespace(last_hidden_state=self._states(input_ids))

    def head(self, target):
        return self.lm_head

    def __call__(self, input_ids, large_keys, past):
        length = input_ids.shape[1] + (0 if past is None else past[0].shape[2])
        return self._states(input_ids), (torch.zeros(1, 1, length, 1),) * 2

    def _states(self, ids):
        return torch.nn.functional.one_hot(ids, TOKENS).float()


def transitions(rule, widths, draws):
    """(V, V) counts of successive tokens over ``draws``, and the mean number accepted a round."""
    target, draft = map(Words, tables())
    model = GlideModel(draft, target)
    counts = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    torch.manual_seed(1)
    accepted = rounds = 0
    patch = patch_glide(model, policy=parse_policy(rule)) if rule else None
    while counts.sum() < draws:
        output = model.medusa_generate(
            torch.tensor([[0]]), target, temperature=TEMPERATURE, max_steps=250, prob_to_top=widths,
            do_speculative_sample=True,
        )  # fmt: skip
        tokens = torch.tensor([0, *output["new"]])
        counts.index_put_((tokens[:-1], tokens[1:]), torch.ones(250, dtype=torch.float64), accumulate=True)
        accepted += sum(r.accepted for r in output["rounds"])
        rounds += len(output["rounds"])
    if patch:
        patch.revert()
    return counts, accepted / rounds


@pytest.mark.parametrize("widths", [ALONE, WIDE])
@pytest.mark.parametrize("rule", STOPPING)
def test_sampling_is_exact(rule, widths):
    counts, accepted = transitions(rule, widths, 4_000)
    assert accepted > 0.3
    assert p_value(counts, tables()[0]) > 0.01


def test_a_biased_verification_fails(monkeypatch):
    def keeps_what_it_refused(tokens, paths, logits, temperature):
        path, _ = accept(tokens, paths, logits, temperature)
        return path, int((logits[path[-1]] / temperature).softmax(-1).multinomial(1))

    accept = glide_model.accept
    monkeypatch.setattr(glide_model, "accept", keeps_what_it_refused)
    counts, _ = transitions(None, ALONE, 4_000)
    assert p_value(counts, tables()[0]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("widths", [ALONE, WIDE])
@pytest.mark.parametrize("rule", STOPPING)
def test_sampling_is_exact_on_50_000_draws(rule, widths):
    counts, accepted = transitions(rule, widths, 50_000)
    p = p_value(counts, tables()[0])
    print(f"{rule}, {'GliDe' if widths == ALONE else 'CaPE'}: p = {p:.3f}, {accepted:.2f} accepted a round")
    assert accepted > 0.3
    assert p > 0.01
