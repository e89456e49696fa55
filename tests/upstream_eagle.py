"""Upstream EAGLE with random weights: EAGLE-1 from PyPI, EAGLE-2 and EAGLE-3 from EAGLE_HOME."""

import json
import os
import random
import sys

import torch
from tiny import save_tokenizer, tiny_config
from transformers import LlamaForCausalLM

V, NEW = 300, 40
NEVER = 9.0  # above sqrt(0.15 log V) for any vocabulary
HEADS = {"eagle2": (False, V), "eagle3": (True, 120), "eagle3-full": (True, V)}
PROMPT = torch.tensor([[3, 7, 1, 5, 9, 11, 40, 41]])
SIZES = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 512}


def write_base(folder):
    """A random Llama with what upstream's loader wants beside it: an index, a tokenizer without bos."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(tiny_config(V, num_hidden_layers=8, **SIZES))
    model.save_pretrained(folder)
    index = {"metadata": {}, "weight_map": dict.fromkeys(model.state_dict(), "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    save_tokenizer(V, folder)


def head_config(draft_vocab_size, **changes):
    """A head's configuration, as upstream reads it."""
    config = tiny_config(V, num_hidden_layers=1, draft_vocab_size=draft_vocab_size, bias=False, **SIZES)
    return {**config.to_dict(), **changes}


def randomize(layer, deviation):
    """Give a draft layer random weights of its own; the embedding stays the target's."""
    for name, weight in layer.named_parameters():
        if weight.ndim > 1 and "embed" not in name:
            weight.data.normal_(0, deviation)


def generate(model, **options):
    """New token ids, greedy unless told."""
    torch.manual_seed(0)
    random.seed(0)
    ids = model.eagenerate(PROMPT, **{"max_new_tokens": NEW, "max_length": 200, **options})
    return ids[0, PROMPT.shape[1] :].tolist()


def is_prefix(a, b):
    """Host and patched host overshoot by different lengths: the shorter one must begin the longer one."""
    return a[: min(len(a), len(b))] == b[: min(len(a), len(b))]


def use_checkout():
    """Make the checkout importable."""
    if os.environ["EAGLE_HOME"] not in sys.path:
        sys.path.insert(0, os.environ["EAGLE_HOME"])
