"""Upstream EAGLE with random weights: EAGLE-1 from PyPI, EAGLE-2 and EAGLE-3 from EAGLE_HOME."""

import contextlib
import json
import os
import random
import sys
import warnings

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


def make_model(name, folder):
    """An EaModel with a random head of ``HEADS``, 24 tokens, depth 5, top 5, on a random Llama."""
    use_checkout()
    warnings.simplefilter("ignore")
    from eagle.model.ea_model import EaModel
    from eagle.model.modeling_llama_kv import LlamaForCausalLM as Target

    eagle3, draft = HEADS[name]
    write_base(folder)
    config = folder / "head.json"
    config.write_text(json.dumps(head_config(draft)))
    base = Target.from_pretrained(folder, torch_dtype=torch.float32)
    model = EaModel(eagle3, base, str(folder), str(config), 24, 5, 5, 1.0, {})
    torch.manual_seed(2)
    # No wider: a certain draft's equal scores meet at the budget, where upstream's pick is arbitrary.
    randomize(model.ea_layer, 0.25 if eagle3 else 0.05)
    if eagle3 and draft != V:
        model.ea_layer.d2t = torch.randperm(V)[:draft].sort().values - torch.arange(draft)
    return model.eval()


def load_exported(folder, **shape):
    """The EaModel of what ``train export-eagle`` wrote, in float32."""
    use_checkout()
    from eagle.model.ea_model import EaModel

    base, head = str(folder / "base"), str(folder / "head")
    options = {"use_eagle3": False, "torch_dtype": torch.float32, **shape}
    return EaModel.from_pretrained(base_model_path=base, ea_model_path=head, **options).eval()


def generate(model, prompt=PROMPT, **options):
    """New token ids, greedy unless told."""
    torch.manual_seed(0)
    random.seed(0)
    ids = model.eagenerate(prompt, **{"max_new_tokens": NEW, "max_length": 200, **options})
    return ids[0, prompt.shape[1] :].tolist()


@contextlib.contextmanager
def comparing_trees(layer, theirs):
    """Within the block every tree that is drafted is also drafted by ``theirs``; yields what was equal."""
    ours, calls = layer.topK_genrate, []

    def both(hidden_states, input_ids, head, logits_processor):
        stable = layer.stable_kv
        expected = theirs(hidden_states, input_ids, head, logits_processor)
        layer.stable_kv = stable
        found = ours(hidden_states, input_ids, head, logits_processor)
        calls.append(
            all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True))
        )
        return found

    layer.topK_genrate = both
    try:
        yield calls
    finally:
        layer.topK_genrate = ours


def is_prefix(a, b):
    """Host and patched host overshoot by different lengths: the shorter one must begin the longer one."""
    return a[: min(len(a), len(b))] == b[: min(len(a), len(b))]


def use_checkout():
    """Make the checkout importable."""
    if os.environ["EAGLE_HOME"] not in sys.path:
        sys.path.insert(0, os.environ["EAGLE_HOME"])
