"""The embedded GliDe in the benchmark: counts, options behind an @, the probe, CaPE's tree."""

import pytest
import torch
from bench_hosts import glide_host
from glides import PROMPT

from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.hosts.glide import GlideCapeHost, GlideHost
from svip_adapters.evaluation.hosts.glide_tree import expand
from svip_adapters.evaluation.hosts.tree_target import TreeTarget

IDS = PROMPT[0].tolist()
POLICIES = ["host", "svip:0.65", "svip:0.65@max_length=9", "fixed:2"]


@pytest.fixture(params=[GlideHost, GlideCapeHost])
def host(request):
    return glide_host(request.param)


def run(host, policy, temperature=0.0, new=20):
    host.check(policy)
    return host.generate(IDS, policy=policy, max_new_tokens=new, temperature=temperature, seed=1)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_plains_answer_and_counts_that_add_up(host, policy):
    found = run(host, policy)
    assert found.ids == run(host, "plain").ids
    assert sum(found.accept_lengths) == len(found.ids)
    assert len(found.accept_lengths) == len(found.draft_lengths) == found.target_forwards
    assert len(found.ids) - found.accepted in (found.target_forwards, found.target_forwards - 1)
    assert found.draft_steps == sum(found.draft_lengths)
    wide = isinstance(host, GlideCapeHost)
    assert (found.nodes_verified > sum(found.draft_lengths)) == wide
    assert run(host, policy, temperature=1.0).ids == run(host, policy, temperature=1.0).ids


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("host@max_length=3", "it takes: none"),
        ("svip@depth=3", r"found 'depth=3' .* it takes: max_length \(int\)"),
        ("svip@max_length=x", "found 'max_length=x'"),
    ],
)
def test_wrong_options_are_named(host, policy, message):
    with pytest.raises(BenchError, match=message):
        host.check(policy)


def test_the_probe_is_what_the_drafter_sees_for_its_first_token(host):
    ids = run(host, "plain", new=5).ids
    for i, (entropy, agrees) in enumerate(host.probe(IDS, ids)):
        context = torch.tensor([IDS + ids[:i]])
        with torch.inference_mode():
            target = TreeTarget(host.target)
            target.read(context[:, :-1])
            estimates, _ = host.draft(context, target.last_keys)
            logits = host.model.head(estimates[0, -1])
        expected = torch.distributions.Categorical(logits=logits).entropy()
        assert entropy == pytest.approx(float(expected), abs=1e-4)
        assert agrees == (int(logits.argmax()) == ids[i])


def test_cape_widens_where_the_draft_is_unsure():
    sure, unsure, between = torch.zeros(3, 10)
    sure[4], between[[2, 7]] = 20.0, torch.tensor([4.1, 4.0])
    table = (5, 4, 3, 3, 3, 3, 2, 2, 2, 1, 1)
    tree = expand(torch.stack((sure, between, unsure)), temperature=1.0, prob_to_top=table)
    assert tree.tokens.tolist()[:4] == [4, 2, 7, tree.tokens[3]]
    assert tree.depths.tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 3]
    assert tree.paths.shape == (6, 4)
    hot = expand(torch.stack((sure, between)), temperature=100.0, prob_to_top=table)
    assert len(hot.tokens) == 8
