"""The Hugging Face adapter: patching, refusing to patch, and the way back."""

import copy
import importlib
import importlib.metadata
import importlib.util
import pickle

import pytest
import torch
from assisted import footprint, generate
from transformers import GenerationConfig, GenerationMixin, LlamaModel

from svip_adapters import (
    SVIP,
    HostVersionError,
    PatchError,
    PolicyError,
    UnsupportedHostError,
    patch_transformers,
)


def test_revert_leaves_nothing_behind(chains):
    before = footprint(chains.draft)
    patch = patch_transformers(chains.draft, 0.4)
    assert repr(patch.policy) == repr(SVIP(threshold=0.4))
    generate(chains.target, chains.draft)
    assert footprint(chains.draft) != before
    patch.revert()
    patch.revert()
    assert footprint(chains.draft) == before
    patch_transformers(chains.draft).revert()


def test_revert_refuses_under_another_patch_and_loses_nothing(chains, monkeypatch):
    before = footprint(chains.draft)
    patch = patch_transformers(chains.draft)
    ours = GenerationConfig.get_generation_mode
    monkeypatch.setattr(GenerationConfig, "get_generation_mode", lambda *args: ours(*args))
    with pytest.raises(PatchError, match="get_generation_mode"):
        patch.revert()
    assert patch.active
    monkeypatch.undo()
    patch.revert()
    assert footprint(chains.draft) == before


def test_patching_twice_is_refused(chains):
    with patch_transformers(chains.draft) as patch:
        with pytest.raises(PatchError, match="patched already"):
            patch_transformers(chains.draft, 0.5)
        generate(chains.target, chains.draft)
        assert patch.stats.rounds > 0


def test_a_patched_model_is_not_copied(tiny_llama):
    draft = tiny_llama()
    with patch_transformers(draft):
        for copying in (copy.deepcopy, pickle.dumps):
            with pytest.raises(UnsupportedHostError, match="revert"):
                copying(draft)
    assert generate(draft, copy.deepcopy(draft), new=4) == generate(draft, new=4)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"threshold": 0.3, "policy": SVIP()}, "found both"),
        ({"policy": SVIP}, "Pass an instance"),
        ({"policy": "svip"}, "parse_policy"),
        ({"threshold": -1.0}, "threshold"),
    ],
)
def test_policies_that_make_no_sense(chains, kwargs, message):
    before = footprint(chains.draft)
    with pytest.raises(PolicyError, match=message):
        patch_transformers(chains.draft, **kwargs)
    assert footprint(chains.draft) == before


def test_models_that_cannot_generate(llamas):
    for model in (torch.nn.Linear(2, 2), LlamaModel(llamas.draft.config), "gpt2"):
        with pytest.raises(UnsupportedHostError, match=f"found {type(model).__name__}"):
            patch_transformers(model)


def test_unknown_versions_and_changed_functions_touch_nothing(chains, monkeypatch):
    before = footprint(chains.draft)
    with monkeypatch.context() as patched:
        patched.setattr(importlib.metadata, "version", lambda name: "4.40.0")
        with pytest.raises(HostVersionError, match=r"found transformers 4\.40\.0"):
            patch_transformers(chains.draft)
    with monkeypatch.context() as patched:
        patched.setattr(GenerationMixin, "_get_candidate_generator", lambda self, config: None)
        with pytest.raises(UnsupportedHostError, match="the host changed"):
            patch_transformers(chains.draft)
    assert footprint(chains.draft) == before
