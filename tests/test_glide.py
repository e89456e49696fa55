"""patch_glide on the embedded GliDe, which has the authors' seam: losslessness, lengths and counts."""

import pytest
from glides import NEW, PROMPT, generate, make

from svip_adapters import SVIP, Fixed, LengthPolicy, patch_glide
from svip_adapters.evaluation.hosts.glide_tree import ALONE, CAPE

WIDTHS = [ALONE, CAPE]


@pytest.fixture
def pair():
    return make()


@pytest.fixture(scope="module")
def greedy():
    """The target alone."""
    output = make()[1].generate(PROMPT, max_new_tokens=NEW, do_sample=False)
    return output[0, PROMPT.shape[1] :].tolist()


@pytest.mark.parametrize("widths", WIDTHS)
def test_the_host_alone_is_lossless(pair, greedy, widths):
    output = pair[0].medusa_generate(PROMPT, pair[1], max_steps=NEW, prob_to_top=widths)
    assert output["new"] == greedy
    rounds = output["rounds"]
    assert sum(r.gained for r in rounds) == NEW
    assert sum(r.accepted for r in rounds) > 5
    assert {r.depth for r in rounds[1:]} == {4}
    assert ({r.nodes for r in rounds[1:]} == {4}) == (widths == ALONE)


@pytest.mark.parametrize("widths", WIDTHS)
def test_four_tokens_are_the_hosts_own_rounds(pair, widths):
    own = pair[0].medusa_generate(PROMPT, pair[1], max_steps=NEW, prob_to_top=widths)
    with patch_glide(pair[0], policy=Fixed(4)) as patch:
        assert pair[0].medusa_generate(PROMPT, pair[1], max_steps=NEW, prob_to_top=widths) == own
    drafts = own["rounds"][1:]
    assert patch.stats.rounds == len(drafts)
    assert patch.stats.drafted == sum(r.nodes for r in drafts)
    # The last round may accept more than was asked for; the host cuts that off.
    assert patch.stats.accepted - sum(r.accepted for r in drafts) in range(5)
    assert patch.stats.draft_steps == 4 * len(drafts)
    assert patch.stats.lengths == {4: len(drafts)}


class Watched(SVIP):
    """Notes, for each round, each step's score and whether the draw was hidden."""

    def __post_init__(self):
        self.seen = []

    def plan(self, context):
        self.seen.append([])
        return super().plan(context)

    def stop(self, step):
        self.seen[-1].append((float((0.15 * step.entropy).sqrt()), step.drawn is None))
        return super().stop(step)


@pytest.mark.parametrize("before", [False, True])
def test_each_draft_ends_where_the_rule_says(pair, before):
    never = Watched(threshold=9.0)
    with patch_glide(pair[0], policy=never, max_length=6):
        generate(pair)
    scores = sorted(score for steps in never.seen for score, _ in steps)
    threshold = scores[len(scores) // 2]
    policy = Watched(threshold=threshold, stops_before=before)
    with patch_glide(pair[0], policy=policy, max_length=6) as patch:
        generate(pair)
    lengths, early = [], 0
    for steps in policy.seen:
        assert {hidden for _, hidden in steps} == {before}
        stops = [score > threshold for score, _ in steps]
        assert not any(stops[:-1])
        length = len(stops) if stops[-1] else 6
        lengths.append(max(1, length - (before and stops[-1])))
        early += stops[-1] and lengths[-1] < 6
    assert sorted(patch.stats.lengths.elements()) == sorted(lengths)
    assert patch.stats.early_stops == early
    assert len(set(lengths)) > 1


def test_the_length_is_capped_by_what_the_drafter_was_trained_for(pair, greedy):
    for max_length, most in ((None, 5), (9, 9), (1, 1)):
        with patch_glide(pair[0], policy=Fixed(30), max_length=max_length) as patch:
            assert generate(pair) == greedy
        assert set(patch.stats.lengths) == {most}


def test_it_stops_at_the_end_of_sequence(pair, greedy):
    pair[0].eos_token_id = end = greedy[9]
    with patch_glide(pair[0], 9.0):
        assert generate(pair) == greedy[: greedy.index(end) + 1]


def test_a_policy_is_told_of_sequences_and_outcomes(pair):
    told = []

    class Listens(LengthPolicy):
        def begin(self):
            told.append("begin")

        def stop(self, step):
            return step.entropy > 9

        def verified(self, outcome):
            told.append((outcome.drafted, outcome.accepted, outcome.depth))

    with patch_glide(pair[0], policy=Listens()):
        output = pair[0].medusa_generate(PROMPT, pair[1], max_steps=NEW, prob_to_top=CAPE)
        generate(pair, 3)
    rounds = output["rounds"][1:]
    assert told[0] == "begin"
    assert told[1 : len(rounds)] == [(r.nodes, r.accepted, r.depth) for r in rounds[:-1]]
    assert told[len(rounds) + 1] == "begin"
