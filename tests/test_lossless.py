"""Speculative sampling under a policy draws from the target's law, whatever the rule: a chi-square test.

Target and draft are Markov chains, so each new token is a draw from a row of probabilities known exactly,
and long generations through the real adapter give one draw a token.
"""

import pytest
import torch
from rules import RULES

from svip_adapters import LengthPolicy, parse_policy, patch_transformers
from svip_adapters.adapters import _bridge

TOKENS = 8
TEMPERATURE = 0.8


class DropsByItsDraw(LengthPolicy):
    """Drops the drawn token if the draft thinks it unlikely: what the interface makes impossible."""

    stops_before = True

    def stop(self, step):
        drawn = self.peeked.unsqueeze(-1)
        return step.logits.softmax(-1).gather(-1, drawn).squeeze(-1) < 0.3


@pytest.fixture
def biased(monkeypatch):
    """The biased rule, and a hole in the interface for it."""
    ask = _bridge.ChainRound.ask

    def leaking(self, logits, drawn):
        self.policy.peeked = drawn
        return ask(self, logits, drawn)

    monkeypatch.setattr(_bridge.ChainRound, "ask", leaking)
    return DropsByItsDraw()


@pytest.fixture
def models(markov_chain):
    """(target, draft): rows that are mostly certain, so that drafts get long; the draft is a little off."""
    generator = torch.Generator().manual_seed(0)
    likely = torch.tensor([0.95, 0.5, 0.93, 0.9, 0.95, 0.6, 0.97, 0.9])
    target = 0.7 * torch.randn(TOKENS, TOKENS, generator=generator)
    for row, p in enumerate(likely):
        others = torch.arange(TOKENS) != (following := (row + 3) % TOKENS)
        target[row, following] = target[row, others].logsumexp(0) + torch.logit(p)
    draft = target + 0.5 * torch.randn(TOKENS, TOKENS, generator=generator)
    return markov_chain(target), markov_chain(draft)


def transitions(models, policy, draws):
    """(V, V) counts of successive tokens over ``draws`` sampled tokens, and the patch's stats."""
    target, draft = models
    counts = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    torch.manual_seed(1)
    with patch_transformers(draft, policy=policy) as patch:
        for start in range(0, draws, 500):
            prompt = torch.tensor([[start // 500 % TOKENS]])
            ids = target.generate(
                prompt,
                assistant_model=draft,
                max_new_tokens=min(500, draws - start),
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
            )[0]
            pairs = TOKENS * ids[:-1] + ids[1:]
            counts += torch.bincount(pairs, minlength=TOKENS**2).view(TOKENS, TOKENS)
    assert counts.sum() == draws
    return counts, patch.stats


def p_value(counts, logits):
    """Chance of counts this far from the law, cells with fewer than five expected pooled by row."""
    expected = counts.sum(-1, keepdim=True) * (logits.double() / TEMPERATURE).softmax(-1)
    rare = expected < 5
    pooled = [torch.where(rare, t, 0).sum(-1) for t in (counts, expected)]
    terms = torch.where(rare, 0, (counts - expected) ** 2 / expected).sum()
    kept = pooled[1] >= 5
    terms += ((pooled[0] - pooled[1]) ** 2 / pooled[1])[kept].sum()
    freedom = (~rare).sum() + kept.sum() - len(counts)
    return torch.special.gammaincc(freedom / 2, terms / 2).item()


@pytest.mark.parametrize("name", ["svip", "svip:stops_before=True"])
def test_sampling_is_exact(models, name):
    counts, stats = transitions(models, parse_policy(name), 1_000)
    assert 0 < stats.accepted < stats.drafted
    assert p_value(counts, models[0].table) > 0.01


def test_a_biased_rule_fails(models, biased):
    counts, stats = transitions(models, biased, 2_000)
    assert stats.accepted > 0
    assert p_value(counts, models[0].table) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_sampling_is_exact_on_50_000_draws(models, name):
    counts, stats = transitions(models, parse_policy(name), 50_000)
    assert 0 < stats.accepted < stats.drafted
    p = p_value(counts, models[0].table)
    print(f"{name}: p = {p:.3f}, {stats}")
    assert p > 0.01


@pytest.mark.slow
def test_a_biased_rule_fails_on_50_000_draws(models, biased):
    counts, _ = transitions(models, biased, 50_000)
    assert p_value(counts, models[0].table) < 1e-6
