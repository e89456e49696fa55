"""patch_eagle: what it refuses, what it names, the way back."""

import pytest
import torch
from eagles import NEW, PROMPT, generate, make

from svip_adapters import PolicyError, UnsupportedHostError, patch_eagle
from svip_adapters.adapters import _eagle_host
from svip_adapters.evaluation.hosts.eagle_layer import EagleLayer
from svip_adapters.evaluation.hosts.eagle_model import EagleModel


@pytest.fixture
def model():
    return make()


def test_revert_leaves_nothing(model):
    def footprint():
        own = {name: {**vars(m)} for name, m in (("model", model), ("layer", model.ea_layer))}
        return own, list(model.state_dict())

    generate(model)
    model.ea_layer.reset_kv()
    before = footprint()
    with patch_eagle(model, 0.5):
        assert list(model.state_dict()) == before[1]
        generate(model)
        model.ea_layer.reset_kv()
    assert footprint() == before


def test_batches_are_refused(model):
    hidden, ids = torch.zeros(2, 3, 32), torch.zeros(2, 4, dtype=torch.long)
    with patch_eagle(model), pytest.raises(UnsupportedHostError, match="batch of 2"):
        model.ea_layer.topK_genrate(hidden, ids, model.base_model.lm_head, None)


def test_other_objects_are_named():
    with pytest.raises(UnsupportedHostError, match="found object without ea_layer"):
        patch_eagle(object())
    model = make()
    del model.ea_layer.top_k
    with pytest.raises(UnsupportedHostError, match="found no top_k on it"):
        patch_eagle(model)


def test_changed_parameters_are_named(model):
    class Changed(EagleLayer):
        def topK_genrate(self, hidden_states, ids, head, logits_processor):
            """Never called."""

    class More(EagleLayer):
        def topK_genrate(self, hidden_states, input_ids, head, logits_processor, attention_mask):
            """Never called."""

    for other in (Changed, More):
        model.ea_layer.__class__ = other
        with pytest.raises(UnsupportedHostError, match="nothing was patched"):
            patch_eagle(model)


def test_a_changed_text_is_a_warning(model, monkeypatch):
    monkeypatch.setitem(_eagle_host._TESTED, EagleLayer.__module__, "another")
    with pytest.warns(UserWarning, match="another text of it"):
        patch_eagle(model).revert()


def test_verify_compares_with_the_hosts_own_tree(model):
    generate(model, 5)
    kept, state = model.ea_layer.stable_kv, torch.get_rng_state()
    patch_eagle(model, verify=True).revert()
    assert model.ea_layer.stable_kv is kept
    assert torch.equal(torch.get_rng_state(), state)

    class Other(EagleLayer):
        def topK_genrate(self, hidden_states, input_ids, head, logits_processor):
            tokens, *rest = super().topK_genrate(hidden_states, input_ids, head, logits_processor)
            return (tokens.flip(1), *rest)

    model.ea_layer.__class__ = Other
    with pytest.raises(UnsupportedHostError, match=r"found another draft_tokens\. .*Nothing was patched"):
        patch_eagle(model, verify=True)
    assert model.ea_layer.stable_kv is kept
    patch_eagle(model).revert()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_depth": 2.5}, "max_depth to be a whole number"),
        ({"max_depth": 0}, "max_depth to be a whole number of at least 1"),
        ({"min_probability": 1.0}, "min_probability from 0 to below 1"),
        ({"level_rule": "worst"}, "level_rule to be one of"),
    ],
)
def test_options_that_make_no_sense(model, options, message):
    with pytest.raises(PolicyError, match=message):
        patch_eagle(model, **options)
    patch_eagle(model).revert()


def test_loading_a_layer_leaves_the_target_as_it_is(tmp_path):
    """In bf16 too: its float32 rotary frequencies are not the layer's to round."""
    target = make().base_model.bfloat16()
    target.model.rotary_emb.float()
    make().ea_layer.save(tmp_path / "layer.safetensors", "tiny")
    with torch.inference_mode():
        before = target(PROMPT).logits
    layer = EagleLayer.trained(target, tmp_path / "layer.safetensors")
    assert layer.fc.weight.dtype == torch.bfloat16
    assert layer.rotary.inv_freq.dtype == target.model.rotary_emb.inv_freq.dtype == torch.float32
    assert target.get_input_embeddings().weight.requires_grad
    with torch.inference_mode():
        assert torch.equal(target(PROMPT).logits, before)
    model = EagleModel(target, layer).eval()
    with patch_eagle(model, 0.6) as patch:
        assert len(generate(model)) == NEW
    assert patch.stats.rounds
