"""Replayed counts are those of a live greedy run, on every host, rule by rule, to the last token."""

import functools
import tempfile
from pathlib import Path

import pytest
from bench_hosts import HOSTS
from rules import RULES

from svip_adapters import LengthPolicy, PolicyError, SvipAdaptersError
from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.prompts import Prompt
from svip_adapters.evaluation.replay.chains import Chains, replay_chain
from svip_adapters.evaluation.replay.costs import CostModel
from svip_adapters.evaluation.replay.recording import record
from svip_adapters.evaluation.replay.replaying import Replaying
from svip_adapters.evaluation.replay.rounds import HOST_ROUNDS
from svip_adapters.evaluation.replay.trace import Recorded, read_trace

pytest.importorskip("pyarrow")

PROMPTS = [Prompt(1, "a", ("3 7 1 5 9 11", "4 4")), Prompt(2, "b", ("8 2 6",)), Prompt(3, "a", ("1 5",))]
NEW, LENGTH = 24, 45
HOST_OPTIONS = {
    "transformers": [""],
    "glide": ["", "@max_length=12"],
    "glide_cape": ["", "@max_length=12"],
    "eagle2": ["@min_probability=0.02", "@min_probability=0.1,level_rule=best,max_depth=9"],
}
TREES = ["host", "host@depth=2,total_tokens=6", "svip:0.7@min_probability=0.05,level_rule=mean"]
COUNTS = ("accept_lengths", "draft_lengths", "accepted", "draft_steps", "nodes_verified")


def recorded_for(host, **changes):
    values = {
        "host": host.name,
        "target": "t",
        "draft": "d",
        "dtype": "float32",
        "versions": host.versions(),
        "prompts": {},
        "max_new_tokens": NEW,
        "length": 11 if host.name == "eagle2" else LENGTH,
        "top_k": host.limits.get("top_k", 8),
        "floor": 0.02 if host.name == "eagle2" else 0.0,
        "limits": host.limits,
    }
    return Recorded(**values | changes)


@functools.cache
def case(name):
    """(host, trace)"""
    host = HOSTS[name]()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.parquet"
        record(host, PROMPTS, recorded_for(host), file)
        return host, read_trace(file)


def live(host, policy):
    found = []
    for prompt in PROMPTS:
        messages = []
        for turn in prompt.turns:
            messages.append({"role": "user", "content": turn})
            ids = host.encode(messages)
            run = host.generate(ids, policy=policy, max_new_tokens=NEW, temperature=0.0, seed=0)
            found.append(run)
            messages.append({"role": "assistant", "content": host.decode(run.ids)})
    return found


def policies(name):
    if name == "eagle2":
        yield from TREES
    yield from ("plain", "host")
    for rule in [*RULES, "fixed:1", "fixed:0", "svip:0.9", "confidence:0.8"]:
        yield from (rule + option for option in HOST_OPTIONS[name])


@pytest.mark.parametrize(("name", "policy"), [(name, policy) for name in HOSTS for policy in policies(name)])
def test_replayed_counts_are_a_live_runs(name, policy):
    host, trace = case(name)
    for a, b in zip(Replaying(trace)(policy), live(host, policy), strict=True):
        assert {name: getattr(a, name) for name in COUNTS} == {name: getattr(b, name) for name in COUNTS}


@pytest.mark.parametrize("name", HOSTS)
def test_no_rule_beats_the_oracle(name):
    _, trace = case(name)
    for costs in (ratio(0.05), ratio(0.4)):
        replaying = Replaying(trace, costs)
        best = seconds(replaying.oracle(costs), costs, trace)
        rules = [*policies(name), "rate_optimal" + HOST_OPTIONS[name][-1], *replaying.fixed()[::5]]
        found = {policy: seconds(replaying(policy), costs, trace) for policy in rules if policy != "plain"}
        assert best <= min(found.values())


def test_a_rule_that_measures_time_needs_a_clock():
    _, trace = case("glide")
    with pytest.raises(BenchError, match="expected a cost model to replay"):
        Replaying(trace)("any:rate_optimal+fixed:3")
    costs = ratio(0.1)
    once, again = (Replaying(trace, costs)("bandit:rate_optimal+fixed:3") for _ in range(2))
    assert once == again


def ratio(cost):
    return CostModel({1: 1.0, 100: 3.0}, {1: cost, 10: 2 * cost}, (1.0, 0.0), 0.1, 0.01, 0.0, {})


def seconds(done, costs, trace):
    pairs = zip(done, trace.texts, strict=True)
    return sum(costs.seconds(turn, text.prompt_length) for turn, text in pairs)


@pytest.mark.parametrize(
    ("name", "policy", "message"),
    [
        ("transformers", "svip@depth=3", "it takes: none"),
        ("eagle2", "fixed:9@max_depth=20,min_probability=0.001", "@min_probability=P .* a lower --floor"),
        ("eagle2", "svip@top_k=9,min_probability=0.1", "a larger --top-k"),
        ("eagle2", "svip@level_rule=bset,min_probability=0.1", "level_rule to be one of"),
        ("eagle2", "confidence@level_rule=mean,min_probability=0.1", "looks at the entropy"),
        ("glide", "fixed:5@max_length=33", "max_length from 1 to 32"),
        ("glide", "host@max_length=3", "it takes: none"),
    ],
)
def test_what_was_not_recorded_is_not_made_up(name, policy, message):
    _, trace = case(name)
    with pytest.raises(SvipAdaptersError, match=message):
        Replaying(trace)(policy)


def test_a_rule_that_looks_at_logits_is_told_what_to_use():
    class Raw(LengthPolicy):
        def stop(self, step):
            return step.logits.amax(-1) > 3

    _, trace = case("glide")
    with pytest.raises(PolicyError, match="keeps signals, not logits"):
        replay_chain(Chains(trace.texts[0], LENGTH), Raw(), HOST_ROUNDS["glide"], most=5)
