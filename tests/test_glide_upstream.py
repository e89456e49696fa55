"""patch_glide on the authors' own code: set GLIDE_HOME to a checkout of GliDe_with_a_CaPE_ICML_24 at edf4c9a.

Needs transformers 4.41.2 (third_party/README.md): run with ``GLIDE_HOME=... pytest -m upstream -k glide``.
"""

import os
import warnings

import pytest
import torch
from upstream_glide import ALONE, CAPE, generate, make_pair, plain, prompts, use_checkout

from svip_adapters import SVIP, Fixed, UnsupportedHostError, patch_glide

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.skipif("GLIDE_HOME" not in os.environ, reason="set GLIDE_HOME to a checkout of GliDe"),
]
WIDTHS = pytest.mark.parametrize("widths", [ALONE, CAPE], ids=["glide", "cape"])

POLICIES = [SVIP(threshold=t) for t in (0.1, 0.3, 0.6, 9.0)] + [Fixed(4), SVIP(stops_before=True)]


@pytest.fixture(scope="module")
def pair():
    """(drafter, target), trained on the same texts; the target emits token 0 like any other."""
    warnings.simplefilter("ignore")
    return make_pair(*use_checkout())


@pytest.fixture(scope="module")
def answers(pair):
    return [(prompt, plain(pair[1], prompt)) for prompt in prompts(20)]


@WIDTHS
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_greedy_output_is_the_targets_own(pair, answers, widths, policy):
    assert any(0 in ids for _, ids in answers)
    with patch_glide(pair[0], policy=policy) as patch:
        same = [generate(pair, prompt, widths) == ids for prompt, ids in answers]
    print(f"{policy}: {sum(same)} of {len(same)}; {patch.stats}")
    assert all(same)
    assert patch.stats.accepted


@WIDTHS
def test_four_tokens_are_the_hosts_own_rounds(pair, answers, widths):
    prompt = answers[0][0]
    options = {"temperature": 1.0, "max_steps": 60, "prob_to_top": widths}
    own = pair[0].medusa_generate(prompt, pair[1], **options)
    with patch_glide(pair[0], policy=Fixed(4), fix_padding=False) as patch:
        found = pair[0].medusa_generate(prompt, pair[1], **options)
    assert torch.equal(found["input_ids"], own["input_ids"])
    for count in ("steps", "new_token_sum", "accept_length_sum", "proposal_num"):
        assert int(found[count]) == int(own[count])
    assert patch.stats.rounds == own["steps"]
    assert patch.stats.accepted == int(own["accept_length_sum"])
    assert patch.stats.drafted == own["proposal_num"] - own["steps"]
    assert patch.stats.lengths == {4: own["steps"]}


@WIDTHS
def test_the_rule_holds_in_every_round(pair, answers, widths):
    rounds = []

    class Watched(SVIP):
        def plan(self, context):
            rounds.append([])
            return super().plan(context)

        def stop(self, step):
            logp = step.logits.double().log_softmax(-1)
            rounds[-1].append(float(-(logp.exp() * logp).sum()))
            return super().stop(step)

    with patch_glide(pair[0], policy=Watched(threshold=0.3), max_length=8) as patch:
        for prompt, _ in answers:
            generate(pair, prompt, widths)
    lengths = []
    for entropies in rounds:
        stops = [(0.15 * entropy) ** 0.5 > 0.3 for entropy in entropies]
        assert not any(stops[:-1])
        lengths.append(len(stops) if stops[-1] else 8)
    assert sorted(patch.stats.lengths.elements()) == sorted(lengths)
    assert len(set(lengths)) > 2


def test_padding_that_is_not_repaired_is_lossy(pair):
    """On this pair too: a short path's filling is accepted where the target chooses token 0."""
    found = []
    for prompt in prompts(60):
        ids = plain(pair[1], prompt)
        same = []
        for fix in (False, True):
            with patch_glide(pair[0], policy=Fixed(4), fix_padding=fix):
                same.append(generate(pair, prompt, CAPE) == ids)
        found.append(same)
    unrepaired, repaired = (sum(column) for column in zip(*found, strict=True))
    print(f"unrepaired {unrepaired}, repaired {repaired} of {len(found)}")
    assert repaired == len(found)
    assert unrepaired < len(found)


def test_revert_restores_drafter_target_and_module(pair):
    module = __import__("sys").modules[type(pair[0]).__module__]

    def footprint():
        return {**vars(pair[0])}, {**vars(pair[1])}, {**vars(type(pair[0]))}, {**vars(module)}

    generate(pair, prompts(1)[0], CAPE)
    before = footprint()
    with patch_glide(pair[0], 0.3):
        assert footprint()[1:] == before[1:]
        generate(pair, prompts(1)[0], CAPE)
    pair[0].tokenizer = before[0]["tokenizer"]  # upstream makes one each time
    assert footprint() == before


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"large_kv": False}], ids=str)
def test_the_hosts_other_modes_draft_under_the_policy(pair, options):
    drafter, target = pair
    prompt = prompts(1)[0]
    vars(drafter).pop("past_key_values", None)  # made for one batch size
    with patch_glide(drafter, policy=Fixed(2)) as patch:
        assert generate(pair, prompt, ALONE, **options) == plain(target, prompt)
    del drafter.past_key_values
    assert set(patch.stats.lengths) == {2}
    assert patch.stats.draft_steps == 2 * patch.stats.rounds


def test_a_draft_ends_at_the_end_of_sequence(pair, answers):
    drafter = pair[0]
    drafter.generation_config.eos_token_id = drafter.generation_config.pad_token_id = 3
    try:
        with patch_glide(drafter, policy=Fixed(5)) as patch:
            assert all(generate(pair, prompt, ALONE) == ids for prompt, ids in answers)
    finally:
        drafter.generation_config.eos_token_id = drafter.generation_config.pad_token_id = None
    assert len(patch.stats.lengths) > 1


def test_streaming_drafts_under_the_policy(pair):
    prompt = prompts(1)[0]
    with patch_glide(pair[0], policy=Fixed(2)) as patch:
        for step, _ in enumerate(pair[0].medusa_generate_stream(prompt, pair[1], max_steps=9)):
            assert patch.stats.rounds == step + 1
    assert patch.stats.lengths == {2: 9}


def test_sampling_is_refused_by_name(pair):
    with patch_glide(pair[0]), pytest.raises(UnsupportedHostError, match="IndexError"):
        generate(pair, prompts(1)[0], ALONE, do_speculative_sample=True)
    with pytest.raises(IndexError):
        generate(pair, prompts(1)[0], ALONE, do_speculative_sample=True)


def test_a_target_whose_rotary_base_is_ignored_is_reported(pair):
    pair[1].config.rope_theta = 100000.0
    try:
        with patch_glide(pair[0]), pytest.warns(UserWarning, match="rope_theta = 100000.* in 3 of 3"):
            generate(pair, prompts(1)[0], ALONE, new=3)
        kept = {}
        for model in pair:
            for name, module in model.named_modules():
                if name.endswith("rotary_emb") and (model is pair[1] or "cross_attn" in name):
                    owner = model.get_submodule(name.removesuffix(".rotary_emb"))
                    kept[owner] = module  # and what the warning says:
                    owner.rotary_emb = type(module)(module.dim, base=100000.0, device=module.inv_freq.device)
        with patch_glide(pair[0]), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            generate(pair, prompts(1)[0], ALONE, new=3)
        for owner, module in kept.items():
            owner.rotary_emb = module
    finally:
        pair[1].config.rope_theta = 10000.0
