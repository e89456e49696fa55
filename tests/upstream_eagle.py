"""Upstream EAGLE with random weights, shared by the tests marked upstream: EAGLE_HOME names the checkout."""

import json
import os
import sys

import torch

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


def use_checkout():
    """Make the checkout importable."""
    if os.environ["EAGLE_HOME"] not in sys.path:
        sys.path.insert(0, os.environ["EAGLE_HOME"])
