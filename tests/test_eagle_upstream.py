"""patch_eagle on the authors' own EaModel: set EAGLE_HOME to a checkout of SafeAILab/EAGLE at cb7e084.

Needs transformers 4.53.3 (third_party/README.md): run with ``EAGLE_HOME=... pytest -m upstream -k eagle``.
"""

import json
import os
import random
import sys
import warnings

import pytest
import torch

from svip_adapters import SVIP, patch_eagle

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.skipif(
        "EAGLE_HOME" not in os.environ, reason="set EAGLE_HOME to a checkout of SafeAILab/EAGLE"
    ),
]

V, SIZE, NEW = 300, 64, 40
NEVER = 9.0  # above sqrt(0.15 log V) for any vocabulary
HEADS = {"eagle2": (False, V), "eagle3": (True, 120), "eagle3-full": (True, V)}


def write_base(folder):
    """A random tied Llama with what upstream's loader wants beside it: an index, a tokenizer without bos."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        hidden_size=SIZE,
        intermediate_size=2 * SIZE,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=V,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    index = {"metadata": {}, "weight_map": dict.fromkeys(model.state_dict(), "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(V)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", bos_token="w1").save_pretrained(folder)


def head_config(draft_vocab_size):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": SIZE,
        "intermediate_size": 2 * SIZE,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": V,
        "draft_vocab_size": draft_vocab_size,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "bias": False,
    }


@pytest.fixture(scope="module", params=HEADS)
def model(request, tmp_path_factory):
    """An EaModel with a random head, 24 tokens, depth 5, top 5."""
    sys.path.insert(0, os.environ["EAGLE_HOME"])
    warnings.simplefilter("ignore")
    from eagle.model.ea_model import EaModel
    from eagle.model.modeling_llama_kv import LlamaForCausalLM

    eagle3, draft = HEADS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    write_base(folder)
    config = folder / "head.json"
    config.write_text(json.dumps(head_config(draft)))
    base = LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    model = EaModel(eagle3, base, str(folder), str(config), 24, 5, 5, 1.0, {})
    torch.manual_seed(2)
    for name, weight in model.ea_layer.named_parameters():
        if weight.ndim > 1 and "embed" not in name:
            # No wider: a certain draft's equal scores meet at the budget, where upstream's pick is arbitrary.
            weight.data.normal_(0, 0.25 if eagle3 else 0.05)
    if eagle3 and draft != V:
        model.ea_layer.d2t = torch.randperm(V)[:draft].sort().values - torch.arange(draft)
    return model.eval()


PROMPT = torch.tensor([[3, 7, 1, 5, 9, 11, 40, 41]])


def generate(model, **options):
    torch.manual_seed(0)
    random.seed(0)
    ids = model.eagenerate(PROMPT, **{"max_new_tokens": NEW, "max_length": 200, **options})
    return ids[0, PROMPT.shape[1] :].tolist()


def is_prefix(a, b):
    """Host and patched host overshoot by different lengths: the shorter one must begin the longer one."""
    return a[: min(len(a), len(b))] == b[: min(len(a), len(b))]


@pytest.fixture(scope="module")
def plain(model):
    ids = model.naivegenerate(PROMPT, max_new_tokens=NEW, max_length=200)
    return ids[0, PROMPT.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_tree_is_upstreams_when_nothing_stops(model, temperature):
    layer = model.ea_layer
    theirs = layer.topK_genrate
    calls = []
    with patch_eagle(model, policy=SVIP(threshold=NEVER), verify=True) as patch:
        ours = layer.topK_genrate

        def both(hidden_states, input_ids, head, logits_processor):
            stable = layer.stable_kv
            expected = theirs(hidden_states, input_ids, head, logits_processor)
            layer.stable_kv = stable
            found = ours(hidden_states, input_ids, head, logits_processor)
            calls.append(
                [torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True)]
            )
            return found

        layer.topK_genrate = both
        generate(model, temperature=temperature)
        layer.topK_genrate = ours
    assert len(calls) > 10
    assert all(map(all, calls))
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


def test_the_embedded_layer_loads_into_upstream_and_drafts_the_same_trees(model, tmp_path):
    """``train export-eagle``: every key is found, and trees of the same states are the same."""
    from eagle.model.ea_model import EaModel
    from tiny import tiny_target
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from svip_adapters.evaluation.hosts.eagle_layer import load_layer, save_layer
    from svip_adapters.evaluation.train.eagle_head import new_layer
    from svip_adapters.evaluation.train.export_eagle import export_eagle

    target = tiny_target(64)
    target.save_pretrained(tmp_path / "model")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    layer = new_layer(target)
    layer.fc.weight.data += 0.2 * torch.randn_like(layer.fc.weight)
    save_layer(tmp_path / "layer.safetensors", layer, "tiny")
    export_eagle(target, tmp_path / "model", tmp_path, tmp_path / "layer.safetensors")

    theirs = EaModel.from_pretrained(
        use_eagle3=False,
        base_model_path=str(tmp_path / "base"),
        ea_model_path=str(tmp_path / "head"),
        total_token=21,
        depth=4,
        top_k=4,
        torch_dtype=torch.float32,
    ).eval()
    ours = load_layer(target, tmp_path / "layer.safetensors")
    ours.total_tokens, ours.depth, ours.top_k = 20, 4, 4
    state = theirs.ea_layer.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in ours.state_dict().items())
    for length in (3, 9):
        ids = torch.randint(3, 64, (1, length + 1))
        with torch.inference_mode():
            hidden = target.model(ids[:, :-1]).last_hidden_state
        ours.reset_kv()
        theirs.ea_layer.reset_kv()
        found = ours.topK_genrate(hidden, ids, target.lm_head, None)
        expected = theirs.ea_layer.topK_genrate(hidden, ids, theirs.base_model.lm_head, None)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
