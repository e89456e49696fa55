"""patch_glide: what it refuses, what it names, the way back."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from glides import generate, make

from svip_adapters import Fixed, PolicyError, UnsupportedHostError, patch_glide
from svip_adapters.adapters import _glide_host
from svip_adapters.adapters._glide_round import Bridge
from svip_adapters.evaluation.hosts import glide_model


@pytest.fixture
def pair():
    return make()


@pytest.fixture
def model(pair):
    return pair[0]


def test_revert_leaves_nothing(pair):
    def footprint():
        return {**vars(pair[0])}, {**vars(type(pair[0]))}, {**vars(glide_model)}, list(pair[0].state_dict())

    generate(pair)
    pair[0].past_key_values = None
    before = footprint()
    with patch_glide(pair[0], 0.5):
        assert footprint()[1:] == before[1:]
        generate(pair)
        pair[0].past_key_values = None
    assert footprint() == before


@pytest.mark.parametrize("option", ["do_beam_sample", "do_speculative_sample", "expand_cape"])
def test_what_upstream_cannot_do_is_refused(model, option):
    with patch_glide(model):
        with pytest.raises(UnsupportedHostError, match=f"expected {option}=False .* revert the patch"):
            model.medusa_forward(None, torch.zeros(1, 3), **{option: True})
        with pytest.raises(UnsupportedHostError, match=r"expected num_beams=1 .* found 4"):
            model.medusa_forward(None, torch.zeros(1, 3), num_beams=4)


def test_other_objects_are_named(model):
    with pytest.raises(UnsupportedHostError, match=r"found object without medusa_forward.*Pass the small"):
        patch_glide(object())
    del model.config.block_size
    with pytest.raises(UnsupportedHostError, match=r"found GlideModel without config\.block_size"):
        patch_glide(model)


def test_a_module_without_the_seam_is_named(model, monkeypatch):
    monkeypatch.delattr(glide_model, "greedy_search")
    with pytest.raises(UnsupportedHostError, match="without greedy_search"):
        patch_glide(model)


def test_a_method_that_was_replaced_on_the_instance_is_named(pair):
    for name in ("medusa_forward", "medusa_generate"):
        setattr(pair[0], name, lambda *_, **__: None)
        with pytest.raises(UnsupportedHostError, match=f"GlideModel's own {name}, found .*Undo that first"):
            patch_glide(pair[0])
        delattr(pair[0], name)
    with patch_glide(pair[0]) as patch:
        generate(pair, 5)
    assert patch.stats.rounds


def test_changed_parameters_are_named(model, monkeypatch):
    monkeypatch.setattr(glide_model, "generate_candidates_joint_llama", lambda tree, paths: None)
    with pytest.raises(UnsupportedHostError, match="nothing was patched"):
        patch_glide(model)


def test_a_changed_text_is_a_warning(model, monkeypatch):
    monkeypatch.setattr(_glide_host, "_MODULE", glide_model.__name__)
    with pytest.warns(UserWarning, match="another text of it"):
        patch_glide(model).revert()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, "max_length from 1 to 32, found 0"),
        ({"max_length": 33}, "max_length from 1 to 32, found 33"),
        ({"max_length": 2.5}, r"found 2\.5"),
    ],
)
def test_options_that_make_no_sense(model, options, message):
    with pytest.raises(PolicyError, match=message):
        patch_glide(model, **options)
    patch_glide(model).revert()


def test_a_target_that_rotates_by_another_base_is_reported_once(pair):
    model, target = pair

    class Rotary(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.inv_freq = base ** (-torch.arange(0, 8, 2) / 8)

    attention = target.model.layers[0].self_attn
    attention.rotary_emb, target.config.rope_theta = Rotary(10000.0), 100000.0
    where = r"rope_theta = 100000.*target\.model\.layers\.0\.self_attn"
    with patch_glide(model), pytest.warns(UserWarning, match=where) as found:
        [generate(pair, 5) for _ in range(2)]
    assert len(found) == 1
    attention.rotary_emb = Rotary(100000.0)
    with patch_glide(model), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        generate(pair, 5)
        attention.rotary_emb.inv_freq = attention.rotary_emb.inv_freq.bfloat16()  # as model.bfloat16() does
        generate((model, copy.copy(target)), 5)


def test_a_hosts_padding_is_no_token_that_could_be_accepted(model):
    host = SimpleNamespace(
        greedy_search=None,
        generate_candidates_joint_llama=lambda tree, paths: (tree.new_zeros(paths.shape), tree[None]),
        update_inference_inputs_joint_llama=None,
    )
    paths = torch.tensor([[0, 1, 2], [0, 3, -1]])
    for fix, last in ((True, -1), (False, 0)):
        with patch_glide(model) as patch:
            bridge = Bridge(make()[0], host, patch, limit=5, fix_padding=fix)
            found, tree = bridge.candidates(torch.arange(4), paths)
        assert found.tolist() == [[0, 0, 0], [0, 0, last]]
        assert tree.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(("block_size", "most"), [(3, 3), (64, 32), (None, 5)])
def test_the_default_cap_is_the_training_block_within_the_hosts_limit(pair, block_size, most):
    pair[0].config.block_size = block_size
    with patch_glide(pair[0], policy=Fixed(40)) as patch:
        generate(pair, 50)
    assert set(patch.stats.lengths) == {most}
