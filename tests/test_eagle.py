"""patch_eagle on the embedded EAGLE-2, which has the authors' seam: losslessness and counts."""

import pytest
import torch
from eagles import NEW, PROMPT, generate, make
from rules import ENTROPY_RULES, RULES

from svip_adapters import SVIP, Fixed, LengthPolicy, parse_policy, patch_eagle


@pytest.fixture
def model():
    return make()


@pytest.fixture(scope="module")
def greedy():
    """The target alone."""
    output = make().base_model.generate(PROMPT, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    return output[0, PROMPT.shape[1] :].tolist()


def test_the_host_alone_is_lossless(model, greedy):
    ids, rounds = model.eagenerate(PROMPT, max_new_tokens=NEW)
    assert ids == greedy
    assert sum(r.gained for r in rounds) == NEW
    assert any(r.accepted for r in rounds)
    assert {r.depth for r in rounds[1:]} == {5}
    assert {r.nodes for r in rounds[1:]} == {20}


@pytest.mark.parametrize("rule", RULES)
def test_greedy_output_is_the_targets_own_with_every_option(model, greedy, rule):
    options = {"max_depth": 9, "min_probability": 0.02, "level_rule": "best"}
    with patch_eagle(model, policy=parse_policy(rule), **options) as patch:
        for new in (NEW, 7, 1):
            assert generate(model, new) == greedy[:new]
    assert patch.stats.rounds > 5


@pytest.mark.parametrize("rule", ENTROPY_RULES)
def test_greedy_output_under_a_levels_mean_entropy(model, greedy, rule):
    with patch_eagle(model, policy=parse_policy(rule), level_rule="mean"):
        assert generate(model) == greedy


def test_it_stops_at_the_end_of_sequence(model, greedy):
    end = greedy[9]
    with patch_eagle(model, 0.6):
        assert (
            model.eagenerate(PROMPT, max_new_tokens=NEW, eos_token_id=end)[0]
            == greedy[: greedy.index(end) + 1]
        )


def test_counts_are_those_of_the_hosts_own_rounds(model):
    with patch_eagle(model, policy=Fixed(3)) as patch:
        _, rounds = model.eagenerate(PROMPT, max_new_tokens=NEW)
    verified = rounds[1:-1]  # what became of the last tree is not known at the seam
    assert patch.stats.rounds == len(verified)
    assert patch.stats.drafted == sum(r.nodes for r in verified)
    assert patch.stats.accepted == sum(r.accepted for r in verified)
    assert patch.stats.draft_steps == 3 * len(rounds[1:])
    assert patch.stats.lengths == {3: len(verified)}


def test_host_settings_may_change_between_calls(model, greedy):
    with patch_eagle(model, policy=SVIP(threshold=9.0)) as patch:
        for total_tokens, depth, top_k in ((20, 4, 4), (6, 2, 3), (30, 6, 5)):
            layer = model.ea_layer
            layer.total_tokens, layer.depth, layer.top_k = total_tokens, depth, top_k
            patch.stats.reset()
            assert generate(model) == greedy
            assert set(patch.stats.lengths) == {depth + 1}
            assert patch.stats.drafted == total_tokens * patch.stats.rounds


def test_a_certain_branch_may_go_deeper_than_the_host(model):
    with patch_eagle(model, policy=SVIP(threshold=9.0), max_depth=8) as patch:
        generate(model)
    assert max(patch.stats.lengths) == 8


def test_narrowed_levels_draft_the_hosts_own_likeliest_nodes(model):
    """Nodes likelier than a limit are as many of the host's likeliest, whatever was not drafted on."""
    layer, sizes, widths, narrow = model.ea_layer, [], [], []
    layer.register_forward_pre_hook(
        lambda *call: widths.append(call[2]["input_ids"].shape[1]), with_kwargs=True
    )
    layer.total_tokens = 60
    with patch_eagle(model, policy=SVIP(threshold=9.0), min_probability=0.1):
        ours = layer.topK_genrate

        def both(*arguments):
            before, start = layer.stable_kv, len(widths)
            found = ours(*arguments)
            narrow.append(min(widths[start + 1 :]) < layer.top_k)
            layer.stable_kv, layer.total_tokens = before, found[0].shape[1] - 1
            expected = type(layer).topK_genrate(layer, *arguments)
            layer.total_tokens = 60
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            sizes.append(found[0].shape[1])
            return found

        layer.topK_genrate = both
        generate(model)
        layer.topK_genrate = ours
    assert len(set(sizes)) > 3
    assert any(narrow)


def test_a_policy_is_told_of_sequences_and_outcomes(model):
    told = []

    class Listens(LengthPolicy):
        def begin(self):
            told.append("begin")

        def stop(self, step):
            return step.entropy > 9

        def verified(self, outcome):
            told.append(outcome)

    with patch_eagle(model, policy=Listens()):
        _, rounds = model.eagenerate(PROMPT, max_new_tokens=NEW)
        generate(model, 1)
        generate(model, 3)
    assert [one for one in told if one == "begin"] == ["begin"] * 2  # one token needs no draft
    outcomes = told[1 : 1 + len(rounds) - 2]
    assert [(o.drafted, o.accepted, o.depth) for o in outcomes] == [
        (r.nodes, r.accepted, r.depth) for r in rounds[1:-1]
    ]
