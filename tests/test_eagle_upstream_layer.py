"""The embedded EAGLE-2 layer in upstream's EaModel, and the adapter's trees against upstream's clock."""

import os
import time

import pytest
import torch
from tiny import save_tokenizer, tiny_target
from upstream_eagle import head_config, load_exported, use_checkout

from svip_adapters.adapters._eagle_layer import host_tree

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.skipif("EAGLE_HOME" not in os.environ, reason="EAGLE_HOME names no checkout"),
]


def test_the_embedded_layer_loads_into_upstream_and_drafts_the_same_trees(tmp_path):
    """``train export-eagle``: every key is found, and trees of the same states are the same."""
    from svip_adapters.evaluation.hosts.eagle_layer import EagleLayer
    from svip_adapters.evaluation.train.eagle_head import new_layer
    from svip_adapters.evaluation.train.export_eagle import export_eagle

    target = tiny_target(64)
    target.save_pretrained(tmp_path / "model")
    save_tokenizer(64, tmp_path / "model")
    torch.manual_seed(0)
    layer = new_layer(target)
    for weight in layer.own_state().values():
        weight += 0.2 * torch.randn_like(weight)
    layer.save(tmp_path / "layer.safetensors", "tiny")
    export_eagle(target, tmp_path / "model", tmp_path, tmp_path / "layer.safetensors")

    theirs = load_exported(tmp_path, total_token=21, depth=4, top_k=4)
    ours = EagleLayer.trained(target, tmp_path / "layer.safetensors")
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


def test_building_a_whole_tree_is_not_slower_than_upstream(capsys):
    """SmolLM2's sizes and upstream's default tree, a random EAGLE-2 layer; calls interleaved."""
    use_checkout()
    from eagle.model.cnets1 import Model
    from eagle.model.configs import EConfig

    config = EConfig(
        **{**head_config(49152), "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
    )
    layer = Model(config, bias=False, total_tokens=60, depth=7, top_k=10).eval()
    head = torch.nn.Linear(576, 49152, bias=False)
    layer.init_tree()
    ids, hidden = torch.randint(3, 49152, (1, 201)), torch.randn(1, 200, 576)
    seconds = {"upstream": [], "ours": []}
    for i in range(12):
        for name, draft in (("upstream", Model.topK_genrate), ("ours", host_tree))[:: 1 if i % 2 else -1]:
            layer.reset_kv()
            start = time.perf_counter()
            with torch.inference_mode():
                draft(layer, hidden, ids, head, None)
            seconds[name].append(time.perf_counter() - start)
    upstream, ours = (sorted(found)[len(found) // 2] for found in seconds.values())
    with capsys.disabled():
        print(f"median of 12 trees: upstream {upstream:.3f} s, ours {ours:.3f} s, {ours / upstream:.2f}")
    assert ours < 1.1 * upstream
