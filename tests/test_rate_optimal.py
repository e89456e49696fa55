"""RateOptimal on a drafter whose acceptance is known, by a clock of its own: is it never much slower?"""

import math
import random

import pytest
import torch

from svip_adapters import Bandit, FittedSVIP, Fixed, Outcome, PolicyError, RateOptimal, RoundContext
from svip_adapters.policy import DraftStep

VERIFY, NOISE = 0.03, 0.2


class Step(DraftStep):
    """What a rule sees of a token that the draft gives the probability p."""

    count, device = 1, torch.device("cpu")

    def __init__(self, p, depth, path_logp):
        self.depth, self._path_logp, self.drawn = depth, torch.tensor([path_logp]), torch.tensor([0])
        entropy = -p * math.log(p) - (1 - p) * math.log((1 - p) / 50)
        signals = {"top1_prob": p, "margin": p, "entropy": entropy, "drawn_logp": math.log(p)}
        vars(self).update({name: torch.tensor([value]) for name, value in signals.items()})


class World:
    """A target whose forward takes 1, noise apart, and a draft whose step takes ``cost``.

    Args:
        chance: (random, tokens so far) -> a token's chance of acceptance.
        says: chance -> the draft's own probability of it.
        least: tokens that the host drafts at least.
    """

    def __init__(self, cost, chance, says=lambda chance: min(chance, 0.999), least=0, disturbed=()):
        self.cost, self.chance, self.says, self.least = cost, chance, says, least
        self.disturbed = set(disturbed)

    def run(self, rule, tokens, begin=50):
        """Time a token after the first ``begin``."""
        draw, now, done, marks, rounds = random.Random(0), 0.0, 0, [], 0
        rule.clock = lambda: now
        rule.begin()
        while done < tokens:
            limit = min(rule.plan(RoundContext(context_length=done + 9, remaining=999)), rule.max_length)
            chances, path = [], 0.0
            for depth in range(max(limit, self.least)):
                now += self.cost * (1 + NOISE * draw.random())
                chances.append(self.chance(draw, done))
                p = self.says(chances[-1])
                if depth + 1 < limit and bool(rule.stop(Step(p, depth, path))):
                    break
                path += math.log(p)
            accepted = next((i for i, c in enumerate(chances) if draw.random() >= c), len(chances))
            slow = 40 if rounds in self.disturbed else 1
            now += slow * (1 + VERIFY * len(chances)) * (1 + NOISE * draw.random())
            if chances:
                rule.verified(Outcome(drafted=len(chances), accepted=accepted))
            done += accepted + 1
            rounds += 1
            marks.append((done, now, len(chances)))
        self.lengths = [length for _, _, length in marks]
        first = next(i for i, mark in enumerate(marks) if mark[0] >= begin)
        return (now - marks[first][1]) / (done - marks[first][0])


def best_fixed(world, tokens, begin=50):
    return min(world.run(Timed(n), tokens, begin) for n in (0, 1, 2, 3, 5, 8))


class Timed(Fixed):
    """A fixed length that lets its clock be set."""

    def __init__(self, n):
        super().__init__(n)
        object.__setattr__(self, "clock", None)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


MIXED = {
    "unsure and sure": lambda draw, done: draw.choice([0.2, 0.5, 0.9, 0.97]),
    "good": lambda draw, done: 0.85,
    "poor": lambda draw, done: 0.3,
}


@pytest.mark.parametrize("cost", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("kind", MIXED)
def test_untouched_it_is_about_as_fast_as_the_best_fixed_length(kind, cost):
    world = World(cost, MIXED[kind])
    assert world.run(RateOptimal(), 2500) < 1.06 * best_fixed(world, 2500)


def test_an_overconfident_draft_is_seen_through():
    world = World(0.1, lambda draw, done: 0.6, says=lambda chance: 0.9997)
    assert world.run(RateOptimal(), 2500) < 1.06 * best_fixed(world, 2500)


@pytest.mark.parametrize("cost", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("says", [0.3, 0.9997])
def test_a_useless_draft_costs_three_percent_at_most(cost, says):
    world = World(cost, lambda draw, done: 0.0, says=lambda chance: says)
    assert world.run(RateOptimal(), 2500) < 1.03 * world.run(Timed(0), 2500)


def test_it_comes_back_when_drafting_pays_again():
    world = World(0.1, lambda draw, done: 0.0 if done < 800 else 0.85, says=lambda chance: 0.6)
    assert world.run(RateOptimal(), 3000, begin=2000) < 1.1 * best_fixed(world, 3000, begin=2000)
    assert sum(world.lengths[-20:]) / 20 > 2


@pytest.mark.parametrize("disturbed", [(2,), (3,), (5,), (40,)])
def test_one_slow_round_changes_nothing_for_long(disturbed):
    useless = World(0.3, lambda draw, done: 0.0, says=lambda chance: 0.6, disturbed=disturbed)
    assert useless.run(RateOptimal(), 2000, begin=600) < 1.03 * useless.run(Timed(0), 2000, begin=600)
    good = World(0.1, lambda draw, done: 0.85, disturbed=disturbed)
    assert good.run(RateOptimal(), 2000, begin=600) < 1.08 * best_fixed(good, 2000, begin=600)


def test_on_a_host_that_must_draft_it_does_not_wait_for_plain_rounds():
    world = World(0.1, lambda draw, done: 0.85, least=1)
    assert world.run(RateOptimal(), 2000) < 1.06 * best_fixed(world, 2000)


def test_costs_that_are_given_are_taken():
    cheap, dear = (RateOptimal(draft_cost=cost) for cost in (0.01, 0.6))
    world = World(0.1, lambda draw, done: 0.85)
    world.run(cheap, 600)
    long = sum(world.lengths) / len(world.lengths)
    world.run(dear, 600)
    assert long > 2 * sum(world.lengths) / len(world.lengths)


def test_a_node_of_a_tree_is_worth_what_its_verification_costs():
    rule = RateOptimal(draft_cost=0.1, verify_cost=0.2)
    assert rule.least_probability() == 0.02
    World(0.1, lambda draw, done: 0.5).run(rule, 300)
    assert 0.2 < rule.least_probability() < 0.6


def test_a_bandit_finds_the_best_of_its_rules():
    world = World(0.1, lambda draw, done: 0.85)
    rate = world.run(Bandit(Fixed(1), Fixed(5), Fixed(20)), 3000, begin=300)
    assert rate < 1.1 * world.run(Timed(5), 3000, begin=300)
    worst = max(world.run(Timed(n), 3000, begin=300) for n in (1, 20))
    assert rate < worst


def test_svip_with_a_fitted_constant_stops_where_tokens_are_refused():
    lengths = {}
    for chance in (0.2, 0.95):
        world = World(0.1, lambda draw, done, chance=chance: chance, says=lambda chance: 0.8)
        rule = FittedSVIP(threshold=0.5)
        object.__setattr__(rule, "clock", None)
        world.run(rule, 800)
        lengths[chance] = sum(world.lengths[-100:]) / 100
    assert lengths[0.95] > 3 * lengths[0.2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RateOptimal(draft_cost=0), "draft_cost"),
        (lambda: RateOptimal(verify_cost=-1), "verify_cost"),
        (lambda: RateOptimal(max_length=0), "max_length"),
        (lambda: Bandit(), "one or more LengthPolicy"),
        (lambda: Bandit(Fixed(1), draft_cost=-1.0), "draft_cost"),
        (lambda: FittedSVIP(threshold=0), "threshold"),
    ],
)
def test_arguments_that_make_no_sense(make, message):
    with pytest.raises(PolicyError, match=message):
        make()
