"""Upstream GliDe on a CPU: stand-ins for what it imports and never calls, and a small pair trained here."""

import importlib
import importlib.machinery
import os
import sys
import types
from types import SimpleNamespace

import torch
import transformers

V, NEW = 16, 60
CAPE = [8, 8, 8, 6, 6, 6, 4, 4, 2, 2, 2, 2]  # inference/cape/cape.sh
ALONE = [1] * 12
WORDS = SimpleNamespace(eos_token_id=-1, decode=lambda ids, **_: str(ids))
SIZES = {"vocab_size": V, "hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 4}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def use_checkout():
    """``glide.glideModel`` and ``glide.modeling_llama_kv`` of the checkout, importable without a GPU."""
    if os.environ["GLIDE_HOME"] not in sys.path:
        sys.path.insert(0, os.environ["GLIDE_HOME"])
    for name in ("", ".bert_padding", ".flash_attn_interface", ".ops", ".ops.rms_norm"):
        _stand_in("flash_attn" + name)
    # A path on the authors' disk is read at import and at each generation, for the end-of-sequence token.
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: WORDS
    return importlib.import_module("glide.glideModel"), importlib.import_module("glide.modeling_llama_kv")


def _stand_in(name):
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(name, None), []
        module.__getattr__ = lambda attribute: None if attribute[0] != "_" else _missing(attribute)
        sys.modules[name] = module


def _missing(attribute):
    raise AttributeError(attribute)


def make_pair(upstream, target_code):
    """Drafter and target that have learnt the same texts, the drafter through upstream's training forward."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, **NO_TOKENS, num_hidden_layers=2, num_key_value_heads=2)
    target = target_code.LlamaForCausalLM(config)
    small = upstream.smallLlamaConfig(
        **(SIZES | {"hidden_size": 32}), **NO_TOKENS, num_hidden_layers=1, large_hidden_size=48,
        large_num_attention_heads=4, large_head_dim=12,
    )  # fmt: skip
    drafter = upstream.smallLlamaForCausalLM(small)
    texts = _texts()
    _train(target, texts, lambda ids: target(input_ids=ids, labels=ids, use_cache=False).loss)
    cross = drafter.model.layers[0].cross_attn
    cross._block_wise_attention_mask = _writable(cross._block_wise_attention_mask)

    def loss(ids):
        with torch.no_grad():
            keys = target(input_ids=ids, use_cache=True).past_key_values
        mask = torch.ones_like(ids)
        return drafter(input_ids=ids, attention_mask=mask, labels=ids, large_key_values=keys).loss

    _train(drafter, texts, loss)
    del cross._block_wise_attention_mask
    return drafter.eval(), target.eval()


def _writable(mask):
    """Upstream writes into an expanded float32 mask, which fails; in another type it is copied first."""
    return lambda *arguments: mask(*arguments).double()


def _texts():
    """(512, 64) words: each follows from the two before it, certainly or hardly."""
    generator = torch.Generator().manual_seed(0)
    following = torch.randint(V, (V, V), generator=generator)
    certain = torch.tensor([0.98, 0.95, 0.98, 0.4])[torch.randint(4, (V, V), generator=generator)]
    words = torch.randint(V, (512, 2), generator=generator)
    for _ in range(62):
        pair = words[:, -2], words[:, -1]
        other = torch.randint(V, (512,), generator=generator)
        sure = torch.rand(512, generator=generator) < certain[pair]
        words = torch.cat((words, torch.where(sure, following[pair], other)[:, None]), dim=1)
    return words


def _train(model, texts, loss, steps=300):
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    for step in range(steps):
        optimizer.zero_grad()
        loss(texts[torch.arange(32) + 32 * (step % 16)]).backward()
        optimizer.step()


def prompts(count):
    return torch.randint(V, (count, 1, 8), generator=torch.Generator().manual_seed(1))


def generate(pair, prompt, widths, new=NEW, **options):
    """New token ids of upstream's loop, cut to ``new``."""
    drafter, target = pair
    options |= {"temperature": 1.0, "max_steps": new, "prob_to_top": widths}
    out = drafter.medusa_generate(prompt, target, **options)
    return out["input_ids"][0, prompt.shape[1] :].tolist()[:new]


@torch.no_grad()
def plain(target, prompt, new=NEW):
    """The target alone, greedy and without a cache."""
    target.model.medusa_mask = None
    ids = prompt
    for _ in range(new):
        ids = torch.cat((ids, target(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)), dim=1)
    return ids[0, prompt.shape[1] :].tolist()
