"""The trained drafter's file format: loading, what it borrows, generation with it, broken files."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_target
from transformers import LlamaForCausalLM

from svip_adapters.evaluation.hosts import smollm2
from svip_adapters.evaluation.hosts.chain_draft import export_draft, load_draft, save_draft
from svip_adapters.evaluation.hosts.model_files import ModelError

VOCAB = 260
IDS = torch.tensor([2, 40, 7, 100, 101, 102, 33])


def draft_tensors(target: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Layers 1 and 2 of a random drafter; layer 0 stays the target's."""
    other = tiny_target(VOCAB, seed=1).model.state_dict()
    tensors = {name: t for name, t in other.items() if name.startswith(("layers.1.", "layers.2."))}
    tensors["norm.weight"] = torch.rand(32) + 0.5
    tensors["projection"] = torch.eye(32) + 0.1 * torch.randn(32, 32)
    tensors["vocab_ids"] = IDS
    return {name: t.bfloat16() if t.is_floating_point() else t for name, t in tensors.items()}


@pytest.fixture
def target() -> LlamaForCausalLM:
    return tiny_target(VOCAB)


@pytest.fixture
def draft_file(target: LlamaForCausalLM, tmp_path: Path) -> Path:
    path = tmp_path / "chain.safetensors"
    save_draft(path, draft_tensors(target), num_layers=3, target_sha256="tiny", recipe="random")
    return path


def test_draft_logits(target: LlamaForCausalLM, draft_file: Path) -> None:
    """Against the definition: a full Llama, then E_R @ projection @ norm(h), then -inf elsewhere."""
    tensors = load_file(draft_file)
    plain = tiny_target(VOCAB)
    layers = {name: t.float() for name, t in tensors.items() if name.startswith(("layers.", "norm."))}
    plain.model.load_state_dict(layers, strict=False)
    ids = torch.arange(30)[None] * 7 % VOCAB
    with torch.inference_mode():
        hidden = plain.model(ids).last_hidden_state
        expected = hidden @ (target.model.embed_tokens.weight[IDS] @ tensors["projection"].float()).T
        found = load_draft(target, draft_file)(ids).logits
    assert found.shape == (1, 30, VOCAB)
    torch.testing.assert_close(found[..., IDS], expected, rtol=1e-4, atol=1e-4)
    outside = torch.ones(VOCAB, dtype=torch.bool)
    outside[IDS] = False
    assert (found[..., outside] == -torch.inf).all()


def test_draft_borrows_and_leaves_the_target_alone(target: LlamaForCausalLM, draft_file: Path) -> None:
    before = torch.get_rng_state()
    draft = load_draft(target, draft_file)
    assert torch.equal(before, torch.get_rng_state()), "loading draws no random numbers"
    pointers = {name: t.data_ptr() for name, t in target.model.state_dict().items()}
    shared = {name for name, t in draft.model.state_dict().items() if t.data_ptr() == pointers.get(name)}
    assert shared == {n for n in pointers if n.startswith(("embed_tokens.", "layers.0."))}
    assert type(draft) is LlamaForCausalLM
    assert all(p.requires_grad for p in target.parameters())
    assert not any(p.requires_grad for p in draft.parameters())


def test_draft_follows_dtype(target: LlamaForCausalLM, draft_file: Path) -> None:
    draft = load_draft(target.bfloat16(), draft_file)
    assert {p.dtype for p in draft.parameters()} == {torch.bfloat16}
    assert draft(torch.tensor([[1, 2, 3]])).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("sampling", [False, True])
def test_draft_works_in_assisted_generation(
    target: LlamaForCausalLM, draft_file: Path, sampling: bool
) -> None:
    draft = load_draft(target, draft_file)
    target.generation_config.eos_token_id = draft.generation_config.eos_token_id = None
    prompt = torch.tensor([[1, 50, 60, 70]])
    arguments = {"max_new_tokens": 10, "do_sample": sampling, "attention_mask": torch.ones_like(prompt)}
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assisted = target.generate(prompt, assistant_model=draft, **arguments)
    assert assisted.shape == (1, 14)
    if not sampling:
        assert torch.equal(assisted, target.generate(prompt, **arguments))


def break_file(path: Path, **changes: object) -> None:
    """Rewrite a draft file with some header keys or tensors replaced, or removed where None."""
    tensors = {**load_file(path)}
    header = {"chain_draft": "1", "target_sha256": "tiny", "num_layers": "3"}
    for name, value in changes.items():
        place = header if name in header else tensors
        place.pop(name, None)
        if value is not None:
            place[name] = value  # type: ignore[assignment]
    save_file(tensors, path, metadata=header)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chain_draft": "0"}, "drafter of format 1 .*found '0'"),
        ({"chain_draft": None}, "drafter of format 1 .*found None"),
        ({"target_sha256": "other"}, "SHA-256 other.*found tiny"),
        ({"projection": None}, "expected projection .*found only"),
        (
            {"layers.1.mlp.up_proj.weight": None},
            r"expected layers.1.mlp.up_proj.weight \(64, 32\) .*found none",
        ),
        ({"norm.weight": torch.ones(31)}, r"expected norm.weight \(32,\) .*found \(31,\)"),
        ({"layers.9.mlp.up_proj.weight": torch.ones(64, 32)}, "found layers.9.mlp.up_proj.weight"),
        ({"num_layers": "4"}, "expected layers.3.*found none"),
        ({"vocab_ids": torch.tensor([1, 1])}, "different vocab_ids below 260"),
        ({"vocab_ids": torch.tensor([1, 9999])}, "found 2 from 1 to 9999"),
    ],
)
def test_wrong_draft_file(
    target: LlamaForCausalLM, draft_file: Path, changes: dict[str, object], message: str
) -> None:
    break_file(draft_file, **changes)
    with pytest.raises(ModelError, match=message):
        load_draft(target, draft_file)


def test_missing_or_unreadable_draft_file(target: LlamaForCausalLM, tmp_path: Path) -> None:
    path = tmp_path / "chain.safetensors"
    with pytest.raises(ModelError, match="found no such file"):
        load_draft(target, path)
    path.write_text("not safetensors")
    with pytest.raises(ModelError, match="expected safetensors"):
        load_draft(target, path)


def test_export_is_a_plain_checkpoint(target: LlamaForCausalLM, draft_file: Path, tmp_path: Path) -> None:
    """Stock classes load it, and inside the reduced vocabulary it says the same."""
    export_draft(tmp_path / "plain", target, draft_file)
    plain, draft = LlamaForCausalLM.from_pretrained(tmp_path / "plain"), load_draft(target, draft_file)
    ids = torch.tensor([[1, 50, 60, 70]])
    with torch.inference_mode():
        logits = plain(ids).logits
        torch.testing.assert_close(logits[..., IDS], draft(ids).logits[..., IDS])
    assert logits.isfinite().all()
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["tie_word_embeddings"] is False


def test_export_is_cached_by_the_weights(
    target: LlamaForCausalLM, draft_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made once; other weights get another folder, so that no engine serves old ones."""
    monkeypatch.setenv("SVIP_ADAPTERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "load_target", lambda: target)
    monkeypatch.setattr(smollm2, "WEIGHTS", draft_file)
    first = smollm2.draft_dir()
    assert LlamaForCausalLM.from_pretrained(first).config.num_hidden_layers == 3
    monkeypatch.delattr(smollm2, "load_target")
    assert smollm2.draft_dir() == first
    monkeypatch.setattr(smollm2, "load_target", lambda: target, raising=False)
    tensors = draft_tensors(target) | {"norm.weight": torch.ones(32)}
    save_draft(draft_file, tensors, num_layers=3, target_sha256="tiny", recipe="random")
    assert smollm2.draft_dir() != first
