"""Rules by name."""

import sys

import pytest

from svip_adapters import (
    SVIP,
    AdaEDL,
    AllOf,
    AnyOf,
    Cumulative,
    Fixed,
    LengthPolicy,
    PolicyError,
    Table,
    parse_policy,
)
from svip_adapters.policies import POLICIES, split_policies

OWN = """
from svip_adapters import LengthPolicy

class Mine(LengthPolicy):
    def __init__(self, level=1, word="", flag=False):
        self.level, self.word, self.flag = level, word, flag

    def stop(self, step):
        return step.margin < self.level

answer = 42
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """An importable module with a rule of the user's."""
    (tmp_path / "my_rules.py").write_text(OWN)
    (tmp_path / "half_rules.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_rules", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("svip", SVIP()),
        (" svip:threshold=.3 , scale=1.0 ", SVIP(scale=1.0)),
        ("svip:0.2", SVIP(0.2)),
        ("svip:stops_before=true", SVIP(stops_before=True)),
        ("fixed:5", Fixed(5)),
        ("fixed:n=5", Fixed(5)),
        ("table:1=5,8=3,32=0,by=context_length", Table({1: 5, 8: 3, 32: 0}, by="context_length")),
        ("any:svip:threshold=0.2,scale=1+fixed:5", AnyOf(SVIP(0.2, 1), Fixed(5))),
        ("all:fixed:3+cumulative:threshold=0.2", AllOf(Fixed(3), Cumulative(0.2))),
        ("adaedl:target_rate=0.8", AdaEDL(target_rate=0.8)),
    ],
)
def test_parse(text, expected):
    found = parse_policy(text)
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)


def test_every_name_is_a_rule():
    assert all(issubclass(rule, LengthPolicy) for rule in POLICIES.values())


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("my_rules:Mine", (1, "", False)),
        ("my_rules:Mine:level=2,word=x,flag=true", (2, "x", True)),
        ("my_rules:Mine,level=2", (2, "", False)),
        ("any:my_rules:Mine:3", (3, "", False)),
    ],
)
def test_own_class(own, text, arguments):
    rule = parse_policy(text)
    rule = getattr(rule, "rules", [rule])[0]
    assert (rule.level, rule.word, rule.flag) == arguments


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a rule such as"),
        ("svpi:threshold=0.3", r"Did you mean svip\?.*The rules are adaedl, all"),
        ("confidnce", "Did you mean confidence"),
        ("svip:treshold=0.3", "'treshold'. Did you mean threshold"),
        ("fixed", "missing a required argument: 'n'"),
        ("fixed:5,6", "too many positional"),
        ("svip:threshold=high", "finite number of at least 0, found 'high'"),
        ("svip:scale=1,scale=2", "'scale' twice"),
        ("table:1=2,1=3", "'1' twice"),
        ("table", "missing a required argument: 'lengths'"),
        ("any:", "any:RULE"),
        ("any:svip+", "any:RULE"),
        ("all:any:svip+fixed:3", "nest combinations in Python only"),
        ("no.such:Rule", "importable module, found 'no.such'"),
        ("svp:Rule", "Did you mean svip"),
        ("my_rules:Yours", "found nothing of that name"),
        ("my_rules:answer", "found 42"),
        ("half_rules:Rule", "No module named 'no_such_module'"),
    ],
)
def test_errors_say_what_to_do(own, text, message):
    with pytest.raises(PolicyError, match=message):
        parse_policy(text)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("host, fixed:5,heuristic", ["host", "fixed:5", "heuristic"]),
        ("svip:threshold=0.3,scale=1,confidence", ["svip:threshold=0.3,scale=1", "confidence"]),
        ("table:1=5,8=3,plain,", ["table:1=5,8=3", "plain"]),
        ("any:svip:threshold=1,scale=2+fixed:5,m:C,a=1", ["any:svip:threshold=1,scale=2+fixed:5", "m:C,a=1"]),
        ("", []),
    ],
)
def test_split(text, rules):
    assert split_policies(text) == rules
