"""Signals against a float64 reference, and what they say about broken rows."""

import math

import numpy as np
import pytest
import torch

from svip_adapters import DraftStep, PolicyError, signals


def reference(logits):
    """Entropy, log Z and the two largest probabilities of each row, in float64."""
    x = logits.double().numpy()
    top = x.max(-1, keepdims=True)
    log_z = np.log(np.exp(x - top).sum(-1)) + top[:, 0]
    log_p = x - log_z[:, None]
    p = np.exp(log_p)
    ordered = np.sort(p, axis=-1)
    return -(p * np.where(p > 0, log_p, 0)).sum(-1), log_z, ordered[:, -1], ordered[:, -2]


def rows(kind, vocab, dtype):
    x = torch.randn(3, vocab, generator=torch.Generator().manual_seed(1))
    if kind == "reduced vocabulary":
        x[:, (vocab + 1) // 2 :] = -math.inf
        x = x * 5
    elif kind == "huge":
        x = x * 0.5 + 1e4
    elif kind == "wide":
        x = x * 1e4
    elif kind == "uniform":
        x = torch.zeros_like(x)
    elif kind == "one token":
        x[:, 1:] = -math.inf
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["plain", "reduced vocabulary", "huge", "wide", "uniform", "one token"])
@pytest.mark.parametrize("vocab", [2, 1000, 262144])
def test_signals_match_float64(kind, vocab, dtype):
    logits = rows(kind, vocab, dtype)
    before = logits.clone()
    step = DraftStep(logits, drawn=logits.argmax(-1))
    known = DraftStep(logits, log_probs=logits.float().log_softmax(-1))
    entropy, log_z, first, second = map(torch.from_numpy, reference(logits))
    for found, expected in (
        (step.entropy, entropy),
        (signals.entropy(logits), entropy),
        (known.entropy, entropy),
        (step.top1_prob, first),
        (step.margin, first - second),
        (step.drawn_prob, first),
    ):
        assert found.dtype == torch.float32
        # Only log Z itself is bound to lose digits at 1e4, where float32 steps by 1e-3.
        exact = found is step.entropy or found is known.entropy
        tolerance = 2e-3 if kind in ("huge", "wide") and not exact else 2e-5
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(step.log_z.double(), log_z, rtol=1e-6, atol=1e-5)
    assert torch.equal(logits, before)


def test_entropy_of_half_precision_keeps_the_tail():
    """In bfloat16 a sum over 49152 equal probabilities would stall far from log V."""
    logits = torch.zeros(1, 49152, dtype=torch.bfloat16)
    assert signals.entropy(logits).item() == pytest.approx(math.log(49152), abs=1e-4)


def broken_rows():
    logits = torch.zeros(4, 8)
    logits[0, 3], logits[1], logits[2], logits[3, 3] = math.nan, math.nan, -math.inf, math.inf
    return logits


@pytest.mark.parametrize("first", ["entropy", "log_z"])
def test_broken_rows_are_never_certain(first):
    """One NaN, all NaN, all -inf, one +inf; whichever property is asked first."""
    step = DraftStep(broken_rows(), drawn=torch.tensor([3, 0, 0, 3]))
    getattr(step, first)
    assert step.entropy.tolist() == [math.inf] * 4
    for probability in (step.top1_prob, step.margin, step.drawn_prob):
        assert probability.tolist() == [0.0] * 4
    assert step.drawn_logp.tolist() == [-math.inf] * 4
    known = DraftStep(broken_rows(), log_probs=broken_rows().log_softmax(-1))
    assert known.entropy.tolist() == [math.inf] * 4


def test_margin_of_a_vocabulary_of_one():
    assert signals.margin(torch.zeros(2, 1)).tolist() == [1.0, 1.0]
    assert signals.top1_prob(torch.zeros(2, 4)).tolist() == [0.25, 0.25]


def test_signals_are_computed_once(monkeypatch):
    calls = []
    original = signals.entropy_and_log_z
    monkeypatch.setattr(signals, "entropy_and_log_z", lambda x: (calls.append(1), original(x))[1])
    monkeypatch.setattr(signals, "log_normalizer", lambda x: pytest.fail("log Z came with the entropy"))
    step = DraftStep(torch.randn(2, 9), drawn=torch.zeros(2, dtype=torch.long))
    for _ in range(3):
        assert step.entropy.shape == step.top1_prob.shape == step.drawn_prob.shape == (2,)
    assert len(calls) == 1


def test_path_logp_is_asked_for_once():
    calls = []
    step = DraftStep(torch.zeros(2, 4), path_logp=lambda: (calls.append(1), torch.full((2,), -1.0))[1])
    assert step.path_logp.tolist() == step.path_logp.tolist() == [-1.0, -1.0]
    assert len(calls) == 1
    assert DraftStep(torch.zeros(2, 4)).path_logp.tolist() == [0.0, 0.0]
    given = torch.ones(2)
    assert DraftStep(torch.zeros(2, 4), path_logp=given).path_logp is given


def test_step_refuses_other_shapes_and_peeking():
    with pytest.raises(PolicyError, match=r"found \(1, 2, 3\)"):
        DraftStep(torch.zeros(1, 2, 3))
    with pytest.raises(PolicyError, match="no drawn token"):
        _ = DraftStep(torch.zeros(1, 2)).drawn_prob
