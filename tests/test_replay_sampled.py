"""Means over what may be accepted of a sampled text: exact by enumeration, and draws converge to them."""

import itertools
import math
from statistics import mean, stdev

import pytest
import torch

from svip_adapters import SVIP, parse_policy
from svip_adapters.evaluation.replay.chains import replay_chain
from svip_adapters.evaluation.replay.costs import CostModel
from svip_adapters.evaluation.replay.nodes import Nodes
from svip_adapters.evaluation.replay.rounds import HOST_ROUNDS, Expected
from svip_adapters.evaluation.replay.sampling import SampledChains, SampledReplay, expect_chain, realise
from svip_adapters.evaluation.replay.trace import Recorded, Text, Trace

pytest.importorskip("pyarrow")

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
    recorded = Recorded("transformers", "t", "d", "float32", {}, {}, 8, 4, 1, 0.0, {}, 0.7)
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
