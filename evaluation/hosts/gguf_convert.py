"""A llama-type GGUF file to a plain Hugging Face folder: fp32 safetensors, config, tokenizer.

The GGUF is read with the ``gguf`` package, not by transformers: its own loader differs between 4.57
and 5.x, loses the digit pre-tokenizer, takes the wrong end-of-sequence token and doubles the
beginning-of-sequence one. The folder is written by hand for the same reason: it loads in both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..extras import import_extra

__all__ = ["convert"]

MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL = 3  # gguf.TokenType.CONTROL


def convert(gguf_file: Path, directory: Path, *, sha256: str) -> None:
    """Write ``gguf_file``, a Llama with a byte-level BPE, to ``directory``.

    Args:
        sha256: of the file; kept in config.json as ``gguf_sha256``, so that a draft can tell its target.
    """
    reader = import_extra("gguf").GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {_hf_name(t.name): _array(t, fields) for t in reader.tensors}
    config = _config(fields, tied="lm_head.weight" not in tensors) | {"gguf_sha256": sha256}
    _dump(directory / "config.json", config)
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _dump(directory / "generation_config.json", ids)
    _write_tokenizer(fields, directory)
    import_extra("safetensors.numpy").save_file(
        tensors, directory / "model.safetensors", metadata={"format": "pt"}
    )


def _hf_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{MODULES[parts[2]]}.weight"
    return f"{TOP[parts[0]]}.weight"


def _array(tensor: Any, fields: dict[str, Any]) -> Any:
    """One tensor in float32, rows as Hugging Face orders them."""
    array = import_extra("gguf").quants.dequantize(tensor.data, tensor.tensor_type)
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
    for part, count in heads.items():
        if f".{part}." in tensor.name:
            # llama.cpp interleaves the two rotary halves of each head; Hugging Face keeps them apart.
            rows = array.reshape(fields[count], -1, 2, array.shape[-1])
            array = rows.swapaxes(1, 2).reshape(array.shape)
    return import_extra("numpy").ascontiguousarray(array)


def _config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    theta = fields["llama.rope.freq_base"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": theta,  # where transformers 4 looks
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},  # where 5 does
        "tie_word_embeddings": tied,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(fields: dict[str, Any], directory: Path) -> None:
    """Byte-level BPE as SmolLM2's own tokenizer.json has it: digits one by one, nothing prepended."""
    tokenizers = import_extra("tokenizers")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    bpe = tokenizers.models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = [
        t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == CONTROL
    ]
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }
    _dump(directory / "tokenizer_config.json", settings)


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
