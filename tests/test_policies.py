"""What each rule decides: formulas, states, edges of its arguments."""

import math

import pytest
import torch

from svip_adapters import (
    SVIP,
    AdaEDL,
    AllOf,
    AnyOf,
    Confidence,
    Cumulative,
    DraftStep,
    Fixed,
    Heuristic,
    LengthPolicy,
    Outcome,
    RoundContext,
    Table,
)

CONTEXT = RoundContext(context_length=10, remaining=100)


def two_way(*probabilities):
    """(N, 3) logits: the first token has the given probability, the second the rest, the third none."""
    p = torch.tensor(probabilities)
    return torch.stack([p.log(), (1 - p).log(), torch.full_like(p, -math.inf)], dim=-1)


def step(*probabilities, depth=0, path=None, drawn=0):
    tokens = None if drawn is None else torch.full((len(probabilities),), drawn)
    path_logp = None if path is None else torch.tensor(path)
    return DraftStep(two_way(*probabilities), depth=depth, path_logp=path_logp, drawn=tokens)


def of_entropy(*entropies):
    """A step whose entropies are known: uniform over k tokens has log k, so take what is asked as it is."""
    made = DraftStep(torch.zeros(len(entropies), 2), drawn=torch.zeros(len(entropies), dtype=torch.long))
    made.entropy = torch.tensor(entropies)
    return made


@pytest.mark.parametrize(
    ("rule", "limit"),
    [
        (SVIP(), 0.6),
        (SVIP(threshold=0.3, scale=1.0), 0.09),
        (SVIP(threshold=0.3, scale=0.18), 0.5),
        (SVIP(threshold=0.5, stops_before=True), 0.25 / 0.15),
        (AdaEDL(), 0.3**2 / 0.2),
        (AdaEDL(threshold=0.3), 0.7**2 / 0.2),
    ],
    ids=repr,
)
def test_entropy_rules_stop_above_their_limit(rule, limit):
    answer = rule.stop(of_entropy(0.0, limit - 1e-4, limit + 1e-4, 10.0, math.inf))
    assert answer.tolist() == [False, False, True, True, True]


@pytest.mark.parametrize("h", [0.1, 0.3, 0.7])
def test_svip_is_the_authors_formula(h):
    logits = (
        torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
        * torch.linspace(0.1, 9, 200)[:, None]
    )
    p = logits.double().softmax(-1)
    entropy = -(p * p.log()).sum(-1)
    assert SVIP(threshold=h).stop(DraftStep(logits)).tolist() == ((0.15 * entropy).sqrt() > h).tolist()


def test_confidence_looks_at_the_drawn_token():
    assert Confidence(0.4).stop(step(0.39, 0.41, 0.9)).tolist() == [True, False, False]
    assert Confidence(0.4).stop(step(0.39, 0.41, 0.9, drawn=1)).tolist() == [False, False, True]


def test_cumulative_multiplies_the_path():
    rule = Cumulative(0.5)
    assert rule.stop(step(0.9, 0.9, 0.49)).tolist() == [False, False, True]
    assert rule.stop(step(0.9, 0.9, path=[math.log(0.6), math.log(0.5)])).tolist() == [False, True]


def test_fixed_plans_and_never_stops():
    assert Fixed(7).plan(CONTEXT) == Fixed(7).max_length == 7
    assert Fixed(0).plan(CONTEXT) == 0
    assert Fixed(7).stop(step(0.5, 0.5)).tolist() == [False, False]


def test_heuristic_follows_the_host():
    """+2 after a full acceptance, -1 otherwise, within 1..40; a new sequence starts over."""
    rule = Heuristic()
    lengths = [rule.plan(CONTEXT)]
    for accepted in (True, True, False, False):
        rule.verified(Outcome(drafted=9, accepted=9 if accepted else 2))
        lengths.append(rule.plan(CONTEXT))
    assert lengths == [5, 7, 9, 8, 7]
    for _ in range(50):
        rule.verified(Outcome(drafted=3, accepted=3))
    assert rule.plan(CONTEXT) == 40
    for _ in range(50):
        rule.verified(Outcome(drafted=3, accepted=0))
    assert rule.plan(CONTEXT) == 1
    rule.begin()
    assert rule.plan(CONTEXT) == 5


def adaedl_threshold(rule):
    """The threshold in force, found from outside: the lower bound at which the rule starts to stop."""
    bounds = torch.linspace(0, 1.2, 120001, dtype=torch.float64)
    made = DraftStep(torch.zeros(len(bounds), 2))
    made.entropy = (1 - bounds).clamp(min=0) ** 2 / rule.gamma
    return bounds[rule.stop(made)].max().item()


def test_adaedl_follows_acceptance():
    """Against the update of Draft & Verify (decoding.py), with AdaEDL's condition on the last branch."""
    rule = AdaEDL(threshold=0.5, max_length=4)
    expected, rate = 0.5, 0.0
    outcomes = [
        (4, 1),
        (4, 4),
        (2, 2),
        (3, 3),
        (1, 1),
        (4, 4),
        (4, 4),
        (2, 1),
        (1, 1),
        (1, 1),
        (1, 1),
        (1, 1),
    ]
    moves = set()
    for drafted, accepted in outcomes * 3:
        rule.verified(Outcome(drafted=drafted, accepted=accepted))
        rate = 0.5 * rate + 0.5 * accepted / drafted
        wanted = expected + 0.01 if rate < 0.9 else expected - 0.01 if accepted != 4 else expected
        moves.add(wanted - expected > 0 or (wanted - expected < 0 and -1))
        expected = 0.9 * expected + 0.1 * wanted
        assert adaedl_threshold(rule) == pytest.approx(expected, abs=2e-5)
    assert moves == {True, False, -1}
    rule.begin()
    assert adaedl_threshold(rule) == pytest.approx(0.5, abs=2e-5)


def test_adaedl_bears_empty_rounds_and_wide_trees():
    rule, same = AdaEDL(), AdaEDL()
    before = adaedl_threshold(rule)
    rule.verified(Outcome(drafted=0, accepted=0))
    assert adaedl_threshold(rule) == before
    rule.verified(Outcome(drafted=60, accepted=3, depth=6))
    same.verified(Outcome(drafted=6, accepted=3))
    assert adaedl_threshold(rule) == adaedl_threshold(same)


def test_adaedl_threshold_above_one_stops_everywhere():
    rule = AdaEDL(threshold=1.0)
    for _ in range(30):
        rule.verified(Outcome(drafted=5, accepted=0))
    assert rule.stop(of_entropy(1e-6, 5.0)).tolist() == [True, True]


@pytest.mark.parametrize(("batch", "length"), [(1, 5), (7, 5), (8, 3), (31, 3), (32, 0), (10**6, 0)])
def test_table_by_batch_size(batch, length):
    rule = Table({8: 3, 1: 5, 32: 0})
    assert rule.plan(RoundContext(context_length=9, remaining=9, batch_size=batch)) == length
    assert rule.max_length == 5
    assert not rule.stop(step(0.5)).any()


def test_table_by_context_length_and_its_own_copy():
    lengths = {0: 2, 100: 8}
    rule = Table(lengths, by="context_length")
    lengths[0] = 9
    assert [rule.plan(RoundContext(context_length=n, remaining=9)) for n in (1, 99, 100)] == [2, 2, 8]


RULES = [SVIP(), Confidence(), Cumulative(), AdaEDL(), AnyOf(SVIP(), Fixed(5)), AllOf(SVIP(), Confidence())]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_garbage_stops(rule):
    """NaN, all -inf or +inf logits never run on to max_length."""
    logits = torch.zeros(3, 5)
    logits[0, 1], logits[1], logits[2, 0] = math.nan, -math.inf, math.inf
    assert rule.stop(DraftStep(logits, drawn=torch.zeros(3, dtype=torch.long))).all()


def test_any_and_all_of():
    rules = (SVIP(), Confidence(0.4))
    # Entropy low or high, with the draw likely (rows 0, 1) and unlikely (rows 2, 3).
    made = of_entropy(0.1, 0.9, 0.1, 0.9)
    made.drawn_logp = torch.tensor([0.9, 0.9, 0.1, 0.1]).log()
    assert AnyOf(*rules).stop(made).tolist() == [False, True, True, True]
    assert AllOf(*rules).stop(made).tolist() == [False, False, False, True]


def test_combined_plans():
    rules = (Fixed(3), Heuristic(start=6), SVIP(max_length=9))
    shortest, longest = AnyOf(*rules), AllOf(*rules)
    assert (shortest.plan(CONTEXT), shortest.max_length) == (3, 3)
    assert (longest.plan(CONTEXT), longest.max_length) == (9, 40)


@pytest.mark.parametrize(("stops_before", "first"), [(False, 2), (True, 3)])
def test_all_of_counts_a_spent_plan_as_stopped(stops_before, first):
    """At least three tokens, then until SVIP stops."""
    minimum = Fixed(3)
    object.__setattr__(minimum, "stops_before", stops_before)
    rule = AllOf(minimum, SVIP(stops_before=stops_before, max_length=5))
    rule.plan(CONTEXT)
    answers = [rule.stop(step(0.5, 0.999, depth=depth)).tolist() for depth in range(5)]
    assert [answer[0] for answer in answers] == [depth >= first for depth in range(5)]
    assert not any(answer[1] for answer in answers[:4])
    assert AllOf(Fixed(2)).stop(step(0.999, depth=1)).tolist() == [True]


def test_combinations_pass_on_what_they_hear():
    inner = Heuristic()
    rule = AnyOf(AllOf(inner), SVIP())
    rule.verified(Outcome(drafted=5, accepted=5))
    assert rule.plan(CONTEXT) == 7
    rule.begin()
    assert rule.plan(CONTEXT) == 5
    assert not rule.stateless
    assert AnyOf(SVIP(), Confidence()).stateless


def test_the_contract_has_defaults():
    class Never(LengthPolicy):
        def stop(self, step):
            return step.entropy < 0

    rule = Never()
    rule.begin()
    rule.verified(Outcome(drafted=1, accepted=1))
    assert (rule.plan(CONTEXT), rule.stops_before, rule.stateless) == (40, False, True)


def test_outcome_depth():
    assert Outcome(drafted=4, accepted=4).all_accepted
    assert not Outcome(drafted=4, accepted=3).all_accepted
    assert Outcome(drafted=60, accepted=6, depth=6).all_accepted
