"""The meter against the truth: tiny random models, plain and assisted, and the patch's own counts."""

import time

import pytest
import torch
from bench_hosts import chain_host, llama
from tiny import Words

from svip_adapters import patch_transformers
from svip_adapters.evaluation.bench import Bench, Settings
from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.hosts import load_host, smollm2
from svip_adapters.evaluation.hosts.transformers import TransformersHost
from svip_adapters.evaluation.meter import Meter
from svip_adapters.evaluation.prompts import Prompt
from svip_adapters.policies import parse_policy

PROMPT = [3, 14, 15, 9, 2, 6]


@pytest.fixture(scope="module")
def host():
    return chain_host()


def generate(host, policy, n=24, temperature=0.0, seed=0):
    return host.generate(PROMPT, policy=policy, max_new_tokens=n, temperature=temperature, seed=seed)


def bonus(run):
    """Rounds that added a token of the target's own; all, or all but the last."""
    return len(run.ids) - run.accepted


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", ["plain", "host", "fixed:4", "svip:threshold=0.4", "heuristic"])
def test_counts_add_up(host, policy, temperature):
    run = generate(host, policy, temperature=temperature)
    assert sum(run.accept_lengths) == len(run.ids) == 24
    assert run.target_forwards == len(run.accept_lengths) == len(run.draft_lengths)
    assert run.nodes_verified == sum(run.draft_lengths)
    assert all(
        1 <= gained <= drafted + 1
        for gained, drafted in zip(run.accept_lengths, run.draft_lengths, strict=True)
    )
    assert bonus(run) in (run.target_forwards, run.target_forwards - 1)
    assert run.draft_steps >= max(0, run.nodes_verified - (policy == "plain"))


def test_plain_is_one_forward_a_token(host):
    run = generate(host, "plain")
    assert (run.accept_lengths, run.draft_lengths) == ([1] * 24, [0] * 24)
    assert (run.accepted, run.draft_steps, run.target_forwards) == (0, 0, 24)


def test_fixed_draft_lengths_are_seen_as_they_are(host):
    """Four tokens in every round, except where fewer than five are left to generate."""
    run = generate(host, "fixed:4")
    left = [24 - sum(run.accept_lengths[:i]) for i in range(len(run.accept_lengths))]
    assert run.draft_lengths == [min(4, n - 1) for n in left]
    assert 0 < run.accepted < run.nodes_verified  # the models were made for a mixture


@pytest.mark.parametrize("policy", ["fixed:3", "svip:threshold=0.5", "heuristic"])
def test_hooks_agree_with_what_the_patch_says(host, policy):
    with (
        patch_transformers(host.draft, policy=parse_policy(policy)) as patch,
        Meter(host.target, host.draft) as meter,
    ):
        inputs = torch.tensor([PROMPT])
        output = host.target.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            assistant_model=host.draft,
            do_sample=False,
            max_new_tokens=30,
        )
    _, drafted, accepted = meter.rounds(len(PROMPT), output[0, len(PROMPT) :].tolist())
    stats = patch.stats
    assert (stats.rounds, stats.drafted, stats.accepted) == (len(drafted), sum(drafted), accepted)
    assert stats.draft_steps == meter.draft_steps


@pytest.mark.parametrize("policy", ["plain", "host", "fixed:4"])
def test_an_end_of_sequence_inside_a_draft_is_counted_exactly(host, policy, monkeypatch):
    """Each of the first tokens in turn ends the answer: then the last round may gain drafted tokens only."""
    whole = generate(host, "plain").ids
    for eos in dict.fromkeys(whole[:6]):
        monkeypatch.setattr(host.target.generation_config, "eos_token_id", eos)
        run = generate(host, policy)
        assert run.ids == whole[: whole.index(eos) + 1]
        assert sum(run.accept_lengths) == len(run.ids)
        assert bonus(run) in (run.target_forwards, run.target_forwards - 1)


def test_some_rounds_really_end_on_a_drafted_token(host, monkeypatch):
    for eos in dict.fromkeys(generate(host, "plain").ids):
        monkeypatch.setattr(host.target.generation_config, "eos_token_id", eos)
        run = generate(host, "fixed:4")
        if bonus(run) == run.target_forwards - 1:
            return
    pytest.fail("no end of sequence was reached by a drafted token; the test above tests less than it says")


def test_greedy_answers_are_plains_and_sampled_ones_follow_the_seed(host):
    plain = generate(host, "plain").ids
    for policy in ("host", "fixed:4", "svip:threshold=0.4"):
        assert generate(host, policy).ids == plain
    sampled = [generate(host, "fixed:4", temperature=1.0, seed=seed).ids for seed in (0, 0, 1)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_the_host_default_is_put_back_after_each_turn(host):
    before = host.draft.generation_config.to_dict()
    first = generate(host, "host")
    generate(host, "fixed:4")
    assert generate(host, "host").draft_lengths == first.draft_lengths
    assert host.draft.generation_config.to_dict() == before


def test_hooks_are_removed_also_after_an_error(host):
    with pytest.raises(RuntimeError, match="boom"), Meter(host.target, host.draft):
        raise RuntimeError("boom")
    assert not host.target._forward_pre_hooks
    assert not host.draft._forward_pre_hooks


def test_forwards_that_do_not_fit_are_refused(host):
    with Meter(host.target, host.draft) as meter:
        host.target(input_ids=torch.tensor([[*PROMPT, 7, 7]]))
    with pytest.raises(BenchError, match="cannot be counted"):
        meter.rounds(len(PROMPT), [7, 7, 7, 7, 7])


def test_probe_is_the_drafts_view_of_each_token(host):
    ids = generate(host, "plain", n=8).ids
    found = host.probe(PROMPT, ids)
    assert len(found) == 8
    with torch.no_grad():
        for i, (entropy, agrees) in enumerate(found):
            logits = host.draft(input_ids=torch.tensor([PROMPT + ids[:i]])).logits[0, -1]
            assert entropy == pytest.approx(
                torch.distributions.Categorical(logits=logits).entropy().item(), abs=1e-4
            )
            assert agrees == (int(logits.argmax()) == ids[i])


@pytest.mark.parametrize("policy", ["plain", "fixed:4"])
def test_gap_is_that_of_the_targets_two_best_tokens(host, policy):
    run = generate(host, policy, n=12)
    for position in (0, 5, 11):
        with torch.no_grad():
            logits = host.target(input_ids=torch.tensor([PROMPT + run.ids[:position]])).logits[0, -1]
        best = logits.topk(2).values
        found = host.gap(PROMPT, run.ids, position, run.accept_lengths, run.draft_lengths)
        assert found == pytest.approx(float(best[0] - best[1]), abs=1e-4)
    assert host.gap(PROMPT, run.ids, 12, run.accept_lengths, run.draft_lengths) is None


def test_the_embedded_models_are_loaded_as_asked(host, monkeypatch):
    asked = []
    monkeypatch.setattr(smollm2, "load_target", lambda *args, **kw: asked.append((args, kw)) or host.target)
    monkeypatch.setattr(smollm2, "load_draft", lambda target: host.draft)
    monkeypatch.setattr(smollm2, "load_tokenizer", Words)
    loaded = load_host("transformers", dtype="float32", device="cpu")
    assert asked == [(("float32",), {"device": "cpu"})]
    assert (loaded.dtype, loaded.device, loaded.draft) == ("float32", "cpu", host.draft)


def test_the_driver_on_real_generation(host, tmp_path):
    """Two turns, two prompts: every policy's greedy answers are plain's, in the same run."""
    policies = ("plain", "host", "fixed:4", "svip:threshold=0.4")
    settings = Settings(
        prompt_set="mine",
        policies=policies,
        baseline="host",
        max_new_tokens=8,
        temperature=0.0,
        seed=0,
        threads=1,
    )
    prompts = [Prompt("a", "x", ("3 14 15", "9 2")), Prompt("b", "y", ("6 5", "3 5 8"))]
    cells = Bench(host, prompts, settings, tmp_path).run()["cells"]
    assert {(c["policy"], c["identical"], c["tokens"]) for c in cells if c["task"] == "overall"} == {
        (policy, 2, 32) for policy in policies
    }
    assert all(c["seconds"] > 0 and c["target_forwards"] == c["rounds"] for c in cells)


def test_versions_change_with_the_weights(host):
    other = TransformersHost(llama(2, 5), host.draft, Words()).versions()
    assert other["draft_weights"] == host.versions()["draft_weights"]
    assert other["target_weights"] != host.versions()["target_weights"]


def test_a_hook_costs_microseconds():
    """Next to nothing: a forward of the smallest real model takes milliseconds."""
    model = torch.nn.Identity()
    meter = Meter(model, torch.nn.Identity())
    ids = torch.tensor([[1]])
    start = time.perf_counter()
    for _ in range(2000):
        meter._on_target(model, (), {"input_ids": ids})
    assert (time.perf_counter() - start) / 2000 < 5e-5
