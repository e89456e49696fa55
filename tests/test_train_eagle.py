"""How the embedded EAGLE-2 layer was trained, on a tiny random target."""

import pytest
import torch
from tiny import tiny_target

from svip_adapters.evaluation.hosts.eagle_layer import EagleLayer
from svip_adapters.evaluation.hosts.model_files import ModelError
from svip_adapters.evaluation.train import batches, distil, eagle_head

V = 64  # of the fixture target


@torch.no_grad()
def test_unrolled_steps_are_what_drafting_computes(target):
    """Step s at position i, in one pass over all, is the s-th draft step after a context of i - s + 2."""
    layer = eagle_head.new_layer(target)
    torch.manual_seed(0)
    for weight in layer.own_state().values():  # untrained, the layer adds nothing
        weight.add_(0.2 * torch.randn_like(weight))
    ids = torch.randint(3, V, (2, 9))
    final = target.model(ids).last_hidden_state
    batched = list(eagle_head.unroll(layer, ids, final, 4))
    assert layer.tree_mask is None
    for context in range(1, 5):
        found, past = layer(final[:, :context], ids[:, 1 : context + 1])
        for step in range(4):
            position = context - 1 + step
            torch.testing.assert_close(found[:, -1], batched[step][:, position], rtol=1e-3, atol=1e-3)
            following = ids[:, position + 2 : position + 3]
            found, past = layer(found[:, -1:], following, past_key_values=past)


def test_padding_changes_nothing(target, stored):
    rows, _ = batches.load_states(stored)
    layer = eagle_head.new_layer(target)
    alone, padded = (
        batches.collate(rows[:1]),
        batches.collate([rows[0], max(rows, key=lambda r: len(r["ids"]))]),
    )
    pairs = zip(
        eagle_head.unroll(layer, alone.ids, alone.final, 3),
        eagle_head.unroll(layer, padded.ids, padded.final, 3),
        strict=True,
    )
    for one, two in pairs:
        torch.testing.assert_close(one[0], two[0, : one.shape[1]], rtol=1e-4, atol=1e-4)


def test_training_improves_every_step_and_its_file_loads(target, stored, tmp_path):
    recipe = distil.Recipe(steps=150, rate=1e-2, tokens=400, vocabulary=V, share=1.0, report=0.04)
    head = target.get_input_embeddings().weight.detach()
    rows, _ = batches.load_states(stored)
    embedding = head.clone()
    before = eagle_head.agreement(eagle_head.new_layer(target), rows, head, 2)
    out = tmp_path / "layer.safetensors"
    eagle_head.train(target, [stored], out, recipe, steps=2)
    after = eagle_head.agreement(EagleLayer.trained(target, out), rows, head, 2)
    assert [b > a + 0.05 for a, b in zip(before, after, strict=True)] == [True, True], (before, after)
    assert torch.equal(embedding, head)
    eagle_head.train(target, [stored], out, distil.Recipe(steps=0), steps=2, start_from=out)
    assert eagle_head.agreement(EagleLayer.trained(target, out), rows, head, 2) == after


def test_a_file_of_another_shape_is_named(target, tmp_path):
    path = tmp_path / "layer.safetensors"
    eagle_head.new_layer(target).save(path, "tiny")
    EagleLayer.trained(target, path)
    other = tiny_target(V)
    other.config.gguf_sha256 = "other"
    with pytest.raises(ModelError, match="expected the target with SHA-256 tiny"):
        EagleLayer.trained(other, path)
    layer = eagle_head.new_layer(target)
    layer.fc = torch.nn.Linear(3, 4)
    layer.save(path, "tiny")
    with pytest.raises(ModelError, match=r"found .*'fc\.weight': \(4, 3\)"):
        EagleLayer.trained(target, path)
