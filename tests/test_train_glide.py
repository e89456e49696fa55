"""How the embedded GliDe's drafter was trained, on a tiny random target."""

import inspect

import pytest
import torch

from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.hosts.glide_layer import GlideLayer, block_mask
from svip_adapters.evaluation.hosts.model_files import ModelError
from svip_adapters.evaluation.hosts.tree_target import TreeTarget
from svip_adapters.evaluation.train import batches, distil, glide, keys

V = 64  # of the fixture target


@pytest.fixture(scope="module")
def with_keys(target, stored, tmp_path_factory):
    out = tmp_path_factory.mktemp("keys")
    keys.store_keys(target, [stored], out)
    return out


def test_stored_keys_are_those_of_the_targets_cache(target, with_keys):
    from transformers import DynamicCache

    rows, _ = batches.load_states(with_keys)
    row = rows[7]
    cache = DynamicCache()
    name = "cache" if "cache" in inspect.signature(target.forward).parameters else "past_key_values"
    with torch.no_grad():
        target.model(row["ids"].long()[None], use_cache=True, **{name: cache})
    layer = cache.layers[-1]
    found = keys.unpacked(row["inputs"].float()[None], target.config.num_key_value_heads)
    torch.testing.assert_close(found[0], layer.keys, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found[1], layer.values, rtol=1e-2, atol=1e-2)


def test_keys_that_are_there_are_not_made_again(target, stored, with_keys):
    before = {path: path.stat().st_mtime_ns for path in with_keys.iterdir()}
    keys.store_keys(target, [stored], with_keys)
    assert {path: path.stat().st_mtime_ns for path in with_keys.iterdir()} == before


def test_folders_of_one_name_are_refused(target, stored, with_keys, tmp_path):
    other = tmp_path / stored.name
    other.mkdir()
    with pytest.raises(BenchError, match="folders of different names"):
        keys.store_keys(target, [stored, other], with_keys)


def test_a_token_sees_the_keys_of_earlier_blocks():
    for phase in range(5):
        mask = block_mask(23, 5, phase)
        for query in range(5 - phase, 23):
            gap = (query + phase) % 5 + 1
            assert mask[query].nonzero().flatten().tolist() == list(range(query - gap + 1))
        assert torch.equal(mask[: 5 - phase, : 5 - phase], torch.ones(5 - phase, 5 - phase).tril().bool())
        assert mask.any(dim=1).all()


@torch.no_grad()
def test_trained_positions_are_what_drafting_computes(target):
    """A token as far from the newest key as the mask says sees what it sees in that draft step."""
    layer = glide.new_layer(target)
    torch.manual_seed(0)
    for weight in layer.own_state().values():
        if weight.is_floating_point():
            weight.add_(0.2 * torch.randn_like(weight))
    ids = torch.randint(3, V, (1, 14))
    sequence = TreeTarget(target)
    sequence.read(ids)
    all_keys = sequence.last_keys
    batched, _ = layer(ids, all_keys, cross_mask=block_mask(14, 5))
    known = 10  # the third block: its first token is the root of a draft
    visible = tuple(part[:, :, :known] for part in all_keys)
    found, past = layer(ids[:, : known + 1], visible)
    for position in range(known, 14):
        torch.testing.assert_close(found[:, -1], batched[:, position], rtol=1e-3, atol=1e-3)
        if position < 13:
            found, past = layer(ids[:, position + 1 : position + 2], visible, past)


def test_training_improves_every_gap_and_its_file_loads(target, with_keys, tmp_path):
    recipe = distil.Recipe(steps=150, rate=1e-2, tokens=400, vocabulary=40, share=1.0, report=0.04)
    head = target.get_input_embeddings().weight.detach()
    rows, _ = batches.load_states(with_keys)
    out = tmp_path / "layer.safetensors"
    glide.train(target, [with_keys], out, distil.Recipe(steps=0))
    before = glide.agreement(GlideLayer.trained(target, out), rows, head)
    glide.train(target, [with_keys], out, recipe)
    layer = GlideLayer.trained(target, out)
    after = glide.agreement(layer, rows, head)
    assert [b > a + 0.05 for a, b in zip(before, after, strict=True)] == [True] * 5, (before, after)
    assert len(layer.vocab_ids) == 40
    logits = layer.head(target)(torch.zeros(1, 32))
    assert (logits > -torch.inf).nonzero()[:, 1].tolist() == layer.vocab_ids.tolist()
    glide.train(target, [with_keys], out, distil.Recipe(steps=0), start_from=out)
    assert glide.agreement(GlideLayer.trained(target, out), rows, head) == after


def test_wrong_files_are_named(target, tmp_path):
    path = tmp_path / "layer.safetensors"
    with pytest.raises(ModelError, match="no such file"):
        GlideLayer.trained(target, path)
    with pytest.raises(BenchError, match="found none; write them first"):
        glide.train(target, [tmp_path], path, distil.Recipe(steps=0))
