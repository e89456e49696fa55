"""Sampled traces: what is recorded has the right law, and replayed means are those of live sampled runs."""

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

from svip_adapters import SVIP, DraftStep, parse_policy
from svip_adapters.evaluation.prompts import Prompt
from svip_adapters.evaluation.replay.chains import replay_chain
from svip_adapters.evaluation.replay.costs import CostModel
from svip_adapters.evaluation.replay.nodes import Nodes
from svip_adapters.evaluation.replay.recording import record
from svip_adapters.evaluation.replay.rounds import HOST_ROUNDS, Expected
from svip_adapters.evaluation.replay.sampled_recorder import record_sampled
from svip_adapters.evaluation.replay.sampling import SampledChains, SampledReplay, expect_chain, realise
from svip_adapters.evaluation.replay.trace import Recorded, Text, Trace, read_trace

pytest.importorskip("pyarrow")

TEMPERATURE, PROMPT, NEW, LENGTH = 0.7, "3 7 1 5", 10, 8
ROUNDS = HOST_ROUNDS["transformers"]
COUNTS = ("rounds", "tokens", "drafted", "accepted", "draft_steps", "nodes_verified", "reads")
COSTS = CostModel({1: 1.0, 100: 3.0}, {1: 0.1}, (1.0, 0.0), 0.1, 0.01, 0.0, {}, (2.0, 0.1))
STATELESS = [
    "fixed:0",
    "fixed:3",
    "svip:threshold=0.5,max_length=4",
    "svip:threshold=0.5,max_length=4,stops_before=True",
    "confidence:threshold=0.3,max_length=4",
    "cumulative:threshold=0.1,max_length=4",
    "table:1=0,8=3,by=context_length",
]
LIVE = ["fixed:3", "svip:threshold=0.5,max_length=6", "svip:threshold=0.5,max_length=6,stops_before=True"]


class UnsureOfItself(SVIP):
    """An SVIP that says it learns, so that it is averaged over draws."""

    stateless = False

    def __init__(self):
        super().__init__(threshold=0.5, max_length=4)


def made_up(seed, positions=7, length=4, limit=8):
    """A text with made-up signals; two of its tokens are certain to be accepted, and one draft ends early."""
    draw = torch.Generator().manual_seed(seed)
    accept, sizes = torch.rand(positions, generator=draw, dtype=torch.float64), [length] * positions
    accept[1], accept[4], accept[5], sizes[2] = 1.0, 1.0, 0.0, 2
    starts, parents, chances = [0], [], []
    for chance, size in zip(accept.tolist(), sizes, strict=True):
        here = 1 if chance == 1 else 1 + size
        parents += [-1, -1, *range(starts[-1] + 1, starts[-1] + here - 1)][:here]
        chances += [chance, *[0.0] * (here - 1)]
        starts.append(starts[-1] + here)
    rows = starts[-1]
    ids, logp = torch.arange(rows), -2 * torch.rand(rows, generator=draw)
    same = ids.clone()  # a refused token was drawn from the distribution in the row before
    own = torch.tensor(starts[:-1])
    refused = own[torch.tensor(starts).diff() > 1]
    same[refused + 1] = refused
    entropy, top1 = (scale * torch.rand(rows, generator=draw)[same] for scale in (3, 1))
    nodes = Nodes(
        starts,
        torch.tensor(parents),
        torch.zeros_like(ids),
        ids[:, None],
        logp[:, None],
        entropy,
        top1,
        top1 / 2,
        torch.tensor(chances, dtype=torch.float64),
        2 * logp,
    )
    return Text("a", seed, 0, 3, ids[own].tolist(), [], limit, nodes)


class Coins:
    """Stands in for a random generator: heads is 0, which is below every chance but 0, tails is 1."""

    def __init__(self, kept):
        self.kept = kept

    def random(self, count):
        return 1.0 - torch.tensor(self.kept, dtype=torch.float64).numpy()


def every_outcome(text):
    """(probability, what the coins show) for all of them."""
    chances = text.nodes.accept[torch.tensor(text.nodes.starts[:-1])].tolist()
    for kept in itertools.product(*[[1] if c == 1 else [0] if c == 0 else [0, 1] for c in chances]):
        yield math.prod(c if k else 1 - c for c, k in zip(chances, kept, strict=True)), kept


@pytest.mark.parametrize("rule", STATELESS)
def test_the_exact_mean_is_that_over_all_outcomes(rule):
    policy = parse_policy(rule)
    for seed, limit in ((0, 8), (1, 7), (2, 30)):
        text = made_up(seed, limit=limit)
        found = expect_chain(text, policy, ROUNDS, length=4)
        wanted, seconds = Expected(), 0.0
        for chance, kept in every_outcome(text):
            chains = realise(text, 4, Coins(kept))
            done = replay_chain(chains, policy, ROUNDS, most=4)
            wanted.add(chance, done)
            wanted.reads += chance * done.reads
            seconds += chance * COSTS.seconds(done, 3)
        for name in COUNTS:
            assert getattr(found, name) == pytest.approx(getattr(wanted, name)), name
        assert found.tokens == pytest.approx(len(text.ids))
        assert found.target == pytest.approx(wanted.target)
        assert COSTS.seconds(found, 3) == pytest.approx(seconds)


def test_a_draft_is_the_texts_own_tokens_then_what_was_drafted_after_a_refused_one():
    text = made_up(0)
    first = text.nodes.starts
    begins, accepted = torch.tensor([0, 0, 1, 2, 3]), torch.tensor([0, 2, 1, 0, 4])
    chains = SampledChains(text, 4, begins, accepted)
    tokens = [
        [first[0] + 1, first[0] + 2, first[0] + 3, first[0] + 4],
        [first[0], first[1], first[2] + 1, first[2] + 2],
        [first[1], first[2] + 1, first[2] + 2],
        [first[2] + 1, first[2] + 2],
        [first[3], first[4], first[5], first[6]],
    ]
    for row, wanted in enumerate(tokens):
        assert chains.lengths[row] == len(wanted)
        assert chains.ended[row] == (len(wanted) < 4)
        found = [int(chains.step(torch.tensor([row]), d, hidden=False).drawn) for d in range(len(wanted))]
        assert found == wanted
        assert chains.ranks[row] == [0] * accepted[row] + [1] * (4 - int(accepted[row]))


def test_draws_converge_to_the_exact_mean():
    texts, draws = [made_up(seed) for seed in range(2)], 200
    recorded = Recorded("transformers", "t", "d", "float32", {}, {}, 8, 4, 1, 0.0, {}, TEMPERATURE)
    replay = SampledReplay(Trace(recorded, texts), COSTS, draws)
    exact, drawn = replay("svip:threshold=0.5,max_length=4"), replay(f"{__name__}:UnsureOfItself")
    assert all(not turn.draws for turn in exact)
    for wanted, found in zip(exact, drawn, strict=True):
        assert len(found.draws) == draws
        for name in ("rounds", "drafted", "accepted", "draft_steps"):
            values = [getattr(turn, name) for turn in found.draws]
            assert mean(values) == pytest.approx(getattr(found, name))
            assert stdev(values) > 0
            assert abs(mean(values) - getattr(wanted, name)) < 4 * stdev(values) / math.sqrt(draws)


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
    compare(LIVE[1], 16, *recorded_texts(12, folder))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*LIVE, "confidence:threshold=0.3,max_length=6", "heuristic:3", "host"])
def test_replayed_means_are_those_of_many_live_runs(policy, folder):
    compare(policy, 200, *recorded_texts(120, folder))
