"""A tiny random target in the embedded target's shape, shared by the tests of what is built on that one."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_target(vocab_size: int, seed: int = 0) -> LlamaForCausalLM:
    """A random Llama with peaked logits, marked as if it came from a GGUF."""
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocab_size,
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
