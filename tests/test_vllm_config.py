"""The "length_policy" entry, and what a batch of requests asks of a policy: without vLLM."""

import copy
from types import SimpleNamespace

import pytest
import torch

from svip_adapters import SVIP, Fixed, LengthPolicy, PatchStats, PolicyError, RoundContext, Table
from svip_adapters.adapters._vllm_config import is_strict, policy_entry, read_policy
from svip_adapters.adapters._vllm_round import BatchRound, Requests
from svip_adapters.policies import AnyOf


class Own(LengthPolicy):
    def __init__(self, limit=1.0):
        self.limit = limit

    def stop(self, step):
        return step.entropy > self.limit


@pytest.mark.parametrize(
    ("entry", "policy"),
    [
        ({"name": "svip", "threshold": 0.4}, SVIP(threshold=0.4)),
        ({"name": "svip"}, SVIP()),
        ({"threshold": 0.4}, SVIP(threshold=0.4)),
        ("svip:threshold=0.4", SVIP(threshold=0.4)),
        ({"name": "svip:threshold=0.4", "strict": True}, SVIP(threshold=0.4)),
        ({"name": "fixed", "n": 3}, Fixed(3)),
        ({"name": "table", "lengths": {"1": 5, "8": 0}, "by": "batch_size"}, Table({1: 5, 8: 0})),
        ("any:svip+fixed:2", AnyOf(SVIP(), Fixed(2))),
    ],
)
def test_an_entry_means_a_policy(entry, policy):
    assert repr(read_policy(entry)) == repr(policy)


def test_a_class_of_one_s_own():
    assert read_policy({"name": f"{__name__}:Own", "limit": 2.5}).limit == 2.5
    assert read_policy(f"{__name__}:Own:limit=2.5").limit == 2.5


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (5, "expected length_policy to be a rule or a dictionary, found 5"),
        ({}, r"expected length_policy to name its rule, found \{\}"),
        ({"strict": True}, "to name its rule"),
        ({"name": "svip:threshold=0.4", "threshold": 0.3}, "found both"),
        ({"name": "table", "lengths": {"1": 5, "x": 3}}, "found 'x'"),
        ({"length": 3}, r"expected length_policy to name its rule, found \{'length': 3\}"),
        ({"name": 3}, "to name its rule"),
        ({"name": "svp", "threshold": 0.3}, "Did you mean svip"),
        ({"name": "svip", "treshold": 0.3}, r"expected the arguments of SVIP .*treshold"),
        ({"name": "svip", "threshold": -1}, "threshold"),
        ({"name": "nowhere:Own", "limit": 1}, "importable module"),
        ("", "expected a rule"),
    ],
)
def test_a_wrong_entry_says_what_to_write(entry, message):
    with pytest.raises(PolicyError, match=message):
        read_policy(entry)


def test_where_the_entry_is_found():
    config = SimpleNamespace(additional_config={"length_policy": {"strict": True}, "other": 1})
    assert policy_entry(config) == {"strict": True}
    assert is_strict(policy_entry(config))
    assert not is_strict("svip")
    with pytest.raises(PolicyError, match="Write true, unquoted"):
        is_strict({"strict": "false"})
    for nothing in ({}, object()):  # vLLM allows anything that can be hashed
        config.additional_config = nothing
        assert policy_entry(config) is None


def context(remaining=9):
    return RoundContext(context_length=5, remaining=remaining, batch_size=2)


def logits(*entropies):
    """(N, 8): rows that are certain, or know nothing."""
    certain = torch.eye(8)[0] * 90
    return torch.stack([certain if entropy == 0 else torch.zeros(8) for entropy in entropies])


def step(current, rows, drawn):
    current.keep(drawn, None)
    return current.ask(rows)


def test_rows_stop_by_themselves_and_by_their_ends():
    requests = Requests(Own(), PatchStats())
    rows = [requests.plan(name, context(), 5, frozenset({7})) for name in "abc"] + [requests.idle("d")]
    current = BatchRound(rows)
    assert step(current, logits(0, 0, 0, 0), torch.tensor([1, 7, 1, 1]))
    assert step(current, logits(0, 0, 9, 0), torch.tensor([1, 1, 1, 1]))
    assert not step(current, logits(9, 0, 0, 0), torch.tensor([1, 1, 1, 1]))
    assert [row.length for row in rows] == [3, 1, 2, 0]
    assert [row.early for row in rows] == [True, False, True, False]


def test_a_rule_that_stops_before_keeps_what_went_before():
    requests = Requests(SVIP(threshold=0.3, stops_before=True), PatchStats())
    rows = [requests.plan(name, context(), 5, frozenset()) for name in "ab"]
    current = BatchRound(rows)
    assert step(current, logits(9, 0), torch.tensor([1, 1]))
    assert not step(current, logits(0, 9), torch.tensor([1, 1]))
    assert [row.length for row in rows] == [0, 1]
    assert [row.steps for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("remaining", "most", "limit"), [(9, 5, 3), (2, 5, 2), (0, 5, 0), (9, 1, 1), (9, 0, 0)]
)
def test_a_plan_is_bounded_by_the_sequence_and_the_engine(remaining, most, limit):
    requests = Requests(Fixed(3), PatchStats())
    assert requests.plan("a", context(remaining), most, frozenset()).limit == limit


def test_counts_are_kept_when_the_state_is_dropped():
    total = PatchStats()
    requests = Requests(Own(), total)
    row = requests.plan("a", context(), 2, frozenset())
    step(BatchRound([row]), logits(9), torch.tensor([1]))
    requests.verified("a", 1, 1)
    requests.verified("a", 1, 1)  # nothing is pending: no round of ours
    assert (total.rounds, total.drafted, total.accepted, total.early_stops) == (1, 1, 1, 1)
    kept = copy.copy(requests.stats["a"])
    assert requests.forget({"a", "never seen"}) == [("a", kept)]
    assert requests.stats["a"] == kept
    requests.plan("a", context(), 2, frozenset())  # preempted, and back
    assert requests.stats["a"] == kept


def test_what_was_learnt_goes_on_as_far_as_the_rule_keeps_it():
    class Learns(Own):
        stateless = False
        known = heard = 0

        def begin(self):
            self.heard = 0

        def verified(self, outcome):
            self.known, self.heard = self.known + 1, self.heard + 1

    first = Learns()
    requests = Requests(first, PatchStats())
    a, b = (requests.plan(name, context(), 2, frozenset()).policy for name in "ab")
    assert a is not b
    requests.verified("a", 1, 1)
    assert (a.known, b.known) == (1, 0)
    requests.forget(["a"])
    c = requests.plan("c", context(), 2, frozenset()).policy
    assert c is not a
    assert (c.known, c.heard) == (1, 0)
    assert (first.known, b.known) == (0, 0)


def test_a_round_that_was_not_told_of_is_not_counted():
    total = PatchStats()
    requests = Requests(Own(), total)
    requests.plan("a", context(), 2, frozenset())
    requests.lose()
    requests.verified("a", 5, 0)
    assert total == PatchStats()


def test_counts_of_old_requests_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr("svip_adapters.adapters._vllm_round.KEPT", 2)
    requests = Requests(Own(), PatchStats())
    for name in "abcd":
        requests.plan(name, context(), 2, frozenset())
    requests.forget("abc")
    assert list(requests.stats) == ["b", "c", "d"]
