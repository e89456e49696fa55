"""patch_eagle on EAGLE-1 as PyPI's eagle-llm 1.2.1 ships it, with a random head."""

import importlib.metadata
import json

import pytest
import torch
import transformers
from broken import FAULTS, Broken
from tiny import save_tokenizer, tiny_config
from upstream_eagle import NEW, PROMPT, generate, is_prefix, randomize

from svip_adapters import (
    SVIP,
    Fixed,
    PatchError,
    PolicyError,
    UnsupportedHostError,
    parse_policy,
    patch_eagle,
)

try:
    VERSION = importlib.metadata.version("eagle-llm")
except importlib.metadata.PackageNotFoundError:
    VERSION = None
pytestmark = [
    pytest.mark.skipif(VERSION != "1.2.1", reason="needs: pip install --no-deps eagle-llm==1.2.1"),
    pytest.mark.skipif(transformers.__version__ >= "5", reason="EAGLE-1 does not load on transformers 5"),
    pytest.mark.filterwarnings("ignore"),
]

V, DEPTH = 60, 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from eagle.model.ea_model import EaModel
    from eagle.model.modeling_llama_kv import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("eagle1")
    config = tiny_config(V, num_hidden_layers=2, max_position_embeddings=2048, tie_word_embeddings=False)
    config.save_pretrained(folder)
    save_tokenizer(V, folder)
    (folder / "head.json").write_text(json.dumps({**config.to_dict(), "num_hidden_layers": 1, "bias": True}))
    torch.manual_seed(0)
    base = LlamaForCausalLM(config).eval()
    model = EaModel(base, str(folder), str(folder / "head.json")).eval()
    randomize(model.ea_layer, 0.1)
    return model


@pytest.fixture(scope="module")
def plain(model):
    """The target alone, without a cache."""
    model.base_model.model.tree_mask = None
    ids = PROMPT
    with torch.inference_mode():
        for _ in range(NEW + DEPTH + 2):
            hidden = model.base_model.model(ids)[0]
            ids = torch.cat((ids, model.base_model.lm_head(hidden[:, -1:]).argmax(-1)), dim=1)
    return ids[0, PROMPT.shape[1] :].tolist()


RULES = ["svip:0.9", "svip:0.6", "svip:0.3", "fixed:0", "fixed:2", "heuristic", "confidence:0.1", "adaedl"]


CASES = [(r, level) for r in (*RULES, "svip:threshold=0.6,stops_before=True") for level in ("branch", "best")]


@pytest.mark.parametrize(("rule", "level_rule"), [*CASES, ("svip:0.6", "mean"), ("adaedl", "mean")])
def test_greedy_output_is_the_targets_own(model, plain, rule, level_rule):
    with patch_eagle(model, policy=parse_policy(rule), level_rule=level_rule) as patch:
        for _ in range(2):  # the second sequence starts with the tables that the first one left
            patch.stats.reset()
            ids = generate(model)
            assert is_prefix(ids, plain)
            assert patch.stats.rounds + patch.stats.accepted == len(ids)
    assert is_prefix(generate(model), plain)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_rule_that_never_stops_changes_nothing(model, temperature):
    before = generate(model, temperature=temperature)
    with patch_eagle(model, policy=SVIP(threshold=9.0)) as patch:
        assert generate(model, temperature=temperature) == before
    assert patch.stats.lengths == {DEPTH: patch.stats.rounds}
    assert patch.stats.drafted == 25 * patch.stats.rounds
    assert generate(model, temperature=temperature) == before


def test_levels_are_cut_but_for_the_first_round(model):
    with patch_eagle(model, policy=Fixed(2)) as patch:
        for temperature in (0.0, 1.0):
            patch.stats.reset()
            generate(model, temperature=temperature)
            assert patch.stats.lengths == {DEPTH: 1, 2: patch.stats.rounds - 1}
            assert patch.stats.drafted == 25 + 12 * (patch.stats.rounds - 1)
            assert patch.stats.draft_steps == DEPTH + 2 * patch.stats.rounds


def test_revert_leaves_nothing(model):
    generate(model)
    tables = dict(model.tree_buffers)
    before = {**vars(model.ea_layer)}, set(vars(model)), list(model.state_dict())
    with patch_eagle(model, 0.3):
        generate(model)
        assert len(model.tree_buffers["tree_indices"]) < len(tables["tree_indices"])
        with pytest.raises(PatchError, match="patched already"):
            patch_eagle(model)
    after = {**vars(model.ea_layer)}, set(vars(model)), list(model.state_dict())
    assert after[1:] == before[1:]
    assert after[0].keys() == before[0].keys()
    assert all(model.tree_buffers[name] is table for name, table in tables.items())


@pytest.mark.parametrize(("method", "answer", "error", "message"), FAULTS)
def test_the_error_reaches_the_user_and_the_model_stays_usable(model, plain, method, answer, error, message):
    with patch_eagle(model, policy=Broken(method, answer)):
        with pytest.raises(error, match=message):
            generate(model)
        assert is_prefix(generate(model), plain)
    assert is_prefix(generate(model), plain)


@pytest.mark.parametrize("options", [{"max_depth": 3}, {"min_probability": 0.1}, {"verify": True}])
def test_options_of_dynamic_trees_are_refused(model, options):
    with pytest.raises(PolicyError, match=rf"expected no {next(iter(options))} for EAGLE-1"):
        patch_eagle(model, **options)


def test_two_devices_are_refused(model, monkeypatch):
    monkeypatch.setattr(model.ea_layer, "diff_device", True)
    with pytest.raises(UnsupportedHostError, match="on one device"):
        patch_eagle(model)


def test_a_temperature_that_its_verification_does_not_keep_to_is_refused(model, plain):
    with patch_eagle(model, 0.6):
        for options in ({"temperature": 0.5}, {"temperature": 1.0, "top_p": 0.9}):
            with pytest.raises(UnsupportedHostError, match="expected temperature 0 or 1"):
                generate(model, **options)
        assert is_prefix(generate(model), plain)


def test_a_layer_of_another_package_is_named(model, monkeypatch):
    monkeypatch.setattr(type(model.ea_layer), "__module__", "elsewhere.cnets")
    with pytest.raises(UnsupportedHostError, match=r"beside elsewhere\.cnets"):
        patch_eagle(model)
    monkeypatch.undo()
    patch_eagle(model).revert()
