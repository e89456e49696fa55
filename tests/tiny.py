"""Tiny random Llamas in the embedded target's shape, and what goes with them, for tests of several hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


class Words:
    """A tokenizer of ids: "3 14" is [3, 14]."""

    pad_token_id = 99  # no token: transformers takes padding in a prompt for something to mask

    def apply_chat_template(self, messages, **options):
        return " ".join(message["content"] for message in messages)

    def __call__(self, text, **options):
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, ids, **options):
        return " ".join(map(str, ids))


def tiny_config(vocab_size: int, **changes: Any) -> LlamaConfig:
    """A Llama of three layers and 32 dimensions whose logits come out peaked."""
    values = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "initializer_range": 0.3,
    }
    return LlamaConfig(vocab_size=vocab_size, **(values | changes))


def tiny_target(vocab_size: int, seed: int = 0) -> LlamaForCausalLM:
    """A random Llama, marked as if it came from a GGUF."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny_config(vocab_size, gguf_sha256="tiny")).eval()


def save_tokenizer(vocab_size: int, folder: Path) -> None:
    """Write a tokenizer of words w0, w1, ... to a model's folder; w2 ends a text."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(folder)


def store_random_texts(target: LlamaForCausalLM, folder: Path) -> Path:
    """Sixty texts of random words and the target's states on them, in one chunk, for training."""
    from svip_adapters.evaluation.train import states, text

    draw = torch.Generator().manual_seed(0)
    words = torch.randint(3, target.config.vocab_size, (60, 40), generator=draw).tolist()
    answers = [text.Answer(row[:5], row[5 : 20 + i % 20], 0.0) for i, row in enumerate(words)]
    states.store_states(target, answers, folder, borrowed=1)
    return folder
