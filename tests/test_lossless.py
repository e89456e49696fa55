"""Speculative sampling under a policy draws from the target's law, whatever the rule: a chi-square test.

Target and draft are Markov chains, so each new token is a draw from a row of probabilities known exactly,
and long generations through the real adapter give one draw a token.
"""

import pytest
import torch
from laws import TEMPERATURE, TOKENS, p_value, tables
from rules import RULES

from svip_adapters import LengthPolicy, parse_policy, patch_transformers
from svip_adapters.adapters import _bridge


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
    target, draft = tables()
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
