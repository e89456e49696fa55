"""patch_eagle on the authors' own EaModel: set EAGLE_HOME to a checkout of SafeAILab/EAGLE at cb7e084.

Needs transformers 4.53.3 (third_party/README.md): run with ``EAGLE_HOME=... pytest -m upstream -k eagle``.
"""

import os

import pytest
from upstream_eagle import HEADS, NEVER, NEW, PROMPT, comparing_trees, generate, is_prefix, make_model

from svip_adapters import SVIP, patch_eagle

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.skipif(
        "EAGLE_HOME" not in os.environ, reason="set EAGLE_HOME to a checkout of SafeAILab/EAGLE"
    ),
]


@pytest.fixture(scope="module", params=HEADS)
def model(request, tmp_path_factory):
    """An EaModel with a random head, 24 tokens, depth 5, top 5."""
    return make_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def plain(model):
    ids = model.naivegenerate(PROMPT, max_new_tokens=NEW, max_length=200)
    return ids[0, PROMPT.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_tree_is_upstreams_when_nothing_stops(model, temperature):
    theirs = model.ea_layer.topK_genrate
    patch = patch_eagle(model, policy=SVIP(threshold=NEVER), verify=True)
    with patch, comparing_trees(model.ea_layer, theirs) as calls:
        generate(model, temperature=temperature)
    assert len(calls) > 10
    assert all(calls)
    assert patch.stats.drafted == 23 * patch.stats.rounds


@pytest.mark.parametrize("threshold", [NEVER, 0.9, 0.6, 0.3])
@pytest.mark.parametrize("level_rule", ["branch", "best", "mean"])
def test_greedy_output_is_the_targets_own(model, plain, threshold, level_rule):
    assert is_prefix(generate(model), plain)
    with patch_eagle(model, threshold, level_rule=level_rule) as patch:
        ids = generate(model)
    assert is_prefix(ids, plain)
    assert patch.stats.rounds + patch.stats.accepted == len(ids)
    assert is_prefix(generate(model), plain)


def test_a_tree_of_one_node_can_be_sampled(model):
    """A root-only tree fails in upstream's verification at temperature > 0."""
    rule = SVIP(threshold=0.0, stops_before=True)
    with patch_eagle(model, policy=rule) as patch:
        ids = generate(model, temperature=1.0)
    assert patch.stats.drafted == patch.stats.rounds == len(ids) - patch.stats.accepted > 0


def test_no_text_of_upstream_is_unknown(model, recwarn):
    patch_eagle(model).revert()
    assert not [w for w in recwarn if "another text" in str(w.message)]


@pytest.mark.parametrize("policy", ["host", "host@depth=2,total_tokens=8", "svip:0.6@max_depth=8", "fixed:2"])
def test_the_benchmark_counts_what_upstream_did(model, policy):
    from svip_adapters.evaluation.hosts.eagle import EagleHost

    host = EagleHost(model, target_name="tiny", draft_name="head")
    host.check(policy)
    plain, found = (
        host.generate(PROMPT[0].tolist(), policy=p, max_new_tokens=20, temperature=0.0, seed=0)
        for p in ("plain", policy)
    )
    assert found.ids == plain.ids
    assert plain.target_forwards == len(plain.ids) + 1  # upstream's last forward is for nothing
    assert sum(found.accept_lengths) == len(found.ids)
    assert len(found.accept_lengths) == len(found.draft_lengths) == found.target_forwards
    assert len(found.ids) - found.accepted in (found.target_forwards, found.target_forwards - 1)
    assert found.draft_steps > found.nodes_verified / 24
    assert "topK_genrate" not in vars(model.ea_layer)
