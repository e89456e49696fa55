"""What is recorded of a sampled text has the right law, and replayed means are those of live sampled runs."""

import functools
import itertools
import math
from statistics import mean, stdev
from types import SimpleNamespace

import pytest
import torch
from bench_hosts import HOSTS
from laws import TEMPERATURE as LAW
from laws import TOKENS, p_value, tables
from test_replay import recorded_for

from svip_adapters import DraftStep
from svip_adapters.evaluation.prompts import Prompt
from svip_adapters.evaluation.replay.costs import CostModel
from svip_adapters.evaluation.replay.recording import record
from svip_adapters.evaluation.replay.sampled_recorder import record_sampled
from svip_adapters.evaluation.replay.sampling import SampledReplay
from svip_adapters.evaluation.replay.trace import read_trace

pytest.importorskip("pyarrow")

TEMPERATURE, PROMPT, NEW, LENGTH = 0.7, "3 7 1 5", 10, 8
COSTS = CostModel({1: 1.0}, {1: 0.1}, (0.0, 0.0), 0.0, 0.0, 0.0, {})
LIVE = ["fixed:3", "svip:threshold=0.5,max_length=6", "svip:threshold=0.5,max_length=6,stops_before=True"]


def test_what_is_recorded_is_the_draft_as_the_host_samples_it(monkeypatch):
    """Acceptance by what transformers verifies with, signals by the draft's own forward."""
    from transformers.generation import utils

    host, seen = HOSTS["transformers"](), {}
    verify = utils._speculative_sampling

    def spy(ids, draft, count, target, *rest, **options):
        laws = (logits[0].double().softmax(-1) for logits in (draft, target))
        seen[tuple(ids[0, :-count].tolist())] = [*laws]
        return verify(ids, draft, count, target, *rest, **options)

    monkeypatch.setattr(utils, "_speculative_sampling", spy)
    prompt = host.encode([{"role": "user", "content": PROMPT}])
    arguments = {"max_new_tokens": NEW, "temperature": TEMPERATURE}
    ids = host.generate(prompt, policy="fixed:2", seed=1, **arguments).ids
    nodes = host.record_sampled(prompt, ids, length=3, temperature=TEMPERATURE, seed=2)
    known = 0
    for at, own in enumerate(ids):
        first, last = nodes.starts[at : at + 2]
        if (laws := seen.get((*prompt, *ids[:at]))) is not None:
            (q, *_), (p, *_) = laws
            known += 1
            assert float(nodes.accept[first]) == pytest.approx(min(1.0, float(q[own] / p[own])), rel=1e-3)
            for row in range(first, min(first + 2, last)):
                token = int(nodes.tokens[row, 0])
                assert float(nodes.scaled[row].exp()) == pytest.approx(float(q[token]), rel=1e-3)
                assert row == first or q[token] > p[token]
        assert int(nodes.tokens[first, 0]) == own
        assert last - first == (1 if nodes.accept[first] == 1 else 4)
        said = ids[:at]
        for row in range(first + 1, last):
            with torch.inference_mode():
                logits = host.draft(torch.tensor([prompt + said])).logits[:, -1]
            step = DraftStep(logits, drawn=nodes.tokens[row])
            for name, found in (("drawn_logp", nodes.logp[row, 0]), ("entropy", nodes.entropy[row])):
                assert float(found) == pytest.approx(float(getattr(step, name)), abs=1e-4)
            said = [*said, int(nodes.tokens[row, 0])]
    assert known > 2


class Says:
    """A model of one distribution, whatever came before."""

    def __init__(self, logits):
        self.logits = logits

    def forward(self, past_key_values=None):
        pass

    def __call__(self, input_ids, logits_to_keep, **cache):
        return SimpleNamespace(logits=self.logits.expand(1, logits_to_keep, -1))


def test_a_refused_token_is_drawn_from_what_the_draft_has_too_much_of():
    target, draft = tables()
    p, q = ((table[1].double() / t).softmax(-1) for table, t in ((target, TEMPERATURE), (draft, 0.5)))
    excess, options = (q - p).clamp(min=0), {"length": 2, "temperatures": (TEMPERATURE, 0.5), "eos": None}
    own = int((p - q).argmax())
    counts = torch.zeros(2, TOKENS, dtype=torch.float64)
    for seed in range(100):
        models = Says(target[1]), Says(draft[1])
        nodes = record_sampled(*models, torch.tensor([[3]]), [own] * 5, seed=seed, **options)
        assert nodes.accept.unique().tolist() == [0, pytest.approx(float(q[own] / p[own]))]
        for row in range(0, 15, 3):
            counts[0, nodes.tokens[row + 1, 0]] += 1
            counts[1, nodes.tokens[row + 2, 0]] += 1
    assert p_value(counts[:1], excess[None].log() * LAW) > 0.01
    assert p_value(counts[1:], q[None].log() * LAW) > 0.01
    assert p_value(counts[1:], p[None].log() * LAW) < 1e-4


def test_nothing_is_drafted_after_the_end():
    target, draft = tables()
    p, q = ((table[1].double() / t).softmax(-1) for table, t in ((target, TEMPERATURE), (draft, 0.5)))
    own, eos = int((p - q).argmax()), int((q - p).argmax())
    models, options = (Says(target[1]), Says(draft[1])), {"temperatures": (TEMPERATURE, 0.5), "seed": 0}
    nodes = record_sampled(*models, torch.tensor([[3]]), [own] * 40, length=4, eos=eos, **options)
    drafts = [nodes.tokens[a + 1 : b, 0].tolist() for a, b in itertools.pairwise(nodes.starts)]
    assert {len(drafted) for drafted in drafts} > {1}
    for drafted in drafts:
        assert eos not in drafted[:-1]
        assert len(drafted) == 4 or drafted[-1] == eos


@functools.cache
def recorded_texts(count, folder):
    """(host, trace of ``count`` texts after one prompt)"""
    host = HOSTS["transformers"]()
    changes = {"temperature": TEMPERATURE, "seed": 5, "top_k": 1, "max_new_tokens": NEW, "length": LENGTH}
    prompts = [Prompt(number, "a", (PROMPT,)) for number in range(count)]
    record(host, prompts, recorded_for(host, **changes), folder / "trace.parquet")
    return host, read_trace(folder / "trace.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sampled")


def compare(policy, runs, host, trace):
    """Live runs with seeds of their own against the replay: z below 4 for every count."""
    prompt = host.encode([{"role": "user", "content": PROMPT}])
    live = []
    for seed in range(runs):
        host.forget()
        arguments = {"max_new_tokens": NEW, "temperature": TEMPERATURE, "seed": 10**6 + seed}
        live.append(host.generate(prompt, policy=policy, **arguments))
    replayed = SampledReplay(trace, COSTS, 8)(policy)
    for name in ("rounds", "drafted", "accepted", "draft_steps"):
        ours = [getattr(turn, name) for turn in replayed]
        if name == "rounds":
            theirs = [len(run.accept_lengths) for run in live]
        elif name == "drafted":
            theirs = [sum(run.draft_lengths) for run in live]
        else:
            theirs = [getattr(run, name) for run in live]
        error = math.sqrt(stdev(ours) ** 2 / len(ours) + stdev(theirs) ** 2 / len(theirs))
        z = (mean(ours) - mean(theirs)) / error
        print(f"{policy} {name}: replay {mean(ours):.3f}, live {mean(theirs):.3f}, z {z:.2f}")
        assert abs(z) < 4, (name, mean(ours), mean(theirs))


def test_replayed_means_are_those_of_live_runs(folder):
    compare(LIVE[1], 10, *recorded_texts(8, folder))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*LIVE, "confidence:threshold=0.3,max_length=6", "heuristic:3", "host"])
def test_replayed_means_are_those_of_many_live_runs(policy, folder):
    compare(policy, 100, *recorded_texts(80, folder))
