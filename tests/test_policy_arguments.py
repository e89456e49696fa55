"""What rules refuse to be built from, and that they can be rebuilt and copied."""

import copy
import math

import pytest

from svip_adapters import (
    SVIP,
    AdaEDL,
    AllOf,
    AnyOf,
    Confidence,
    Cumulative,
    Fixed,
    Heuristic,
    Outcome,
    PolicyError,
    RoundContext,
    Table,
)

CONTEXT = RoundContext(context_length=10, remaining=100)
RULES = [
    SVIP(threshold=0.2),
    Fixed(3),
    Heuristic(start=2),
    Confidence(),
    Cumulative(0.1, max_length=5),
    AdaEDL(stops_before=True),
    Table({1: 2, 3: 0}),
    AnyOf(SVIP(), Heuristic()),
    AllOf(Fixed(5), Confidence()),
]


@pytest.mark.parametrize("combine", [AnyOf, AllOf])
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ((), "one or more LengthPolicy"),
        ((SVIP(), "fixed:5"), "one or more LengthPolicy"),
        ((SVIP(stops_before=True), Confidence()), "same side of the draw"),
    ],
)
def test_combinations_refuse(combine, rules, message):
    with pytest.raises(PolicyError, match=message):
        combine(*rules)


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        (SVIP, {"threshold": -0.1}),
        (SVIP, {"threshold": math.nan}),
        (SVIP, {"threshold": math.inf}),
        (SVIP, {"threshold": "0.3"}),
        (SVIP, {"scale": 0}),
        (SVIP, {"max_length": 0}),
        (SVIP, {"max_length": 4.0}),
        (SVIP, {"stops_before": 1}),
        (Fixed, {"n": -1}),
        (Fixed, {"n": True}),
        (Heuristic, {"start": 0}),
        (Heuristic, {"start": 9, "max_length": 8}),
        (Confidence, {"threshold": 0}),
        (Confidence, {"threshold": 1.1}),
        (Cumulative, {"threshold": 0}),
        (Cumulative, {"max_length": -3}),
        (AdaEDL, {"threshold": 1.5}),
        (AdaEDL, {"gamma": -1}),
        (AdaEDL, {"target_rate": 2}),
        (AdaEDL, {"stops_before": "no"}),
        (Table, {"lengths": {}}),
        (Table, {"lengths": [5, 3]}),
        (Table, {"lengths": {2: 3}}),
        (Table, {"lengths": {1: -3}}),
        (Table, {"lengths": {1.0: 3}}),
        (Table, {"lengths": {1: 3}, "by": "weather"}),
    ],
    ids=str,
)
def test_arguments_are_checked(rule, arguments):
    """Each refusal names the rule, what was expected and what was found."""
    with pytest.raises(PolicyError, match=rf"^{rule.__name__} expects .*found .*"):
        rule(**arguments)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_repr_rebuilds_and_copies_are_independent(rule):
    assert repr(eval(repr(rule))) == repr(rule)
    twin = copy.deepcopy(rule)
    assert twin.plan(CONTEXT) == rule.plan(CONTEXT)
    for _ in range(9):
        twin.verified(Outcome(drafted=5, accepted=5))
    assert rule.plan(CONTEXT) == eval(repr(rule)).plan(CONTEXT)
