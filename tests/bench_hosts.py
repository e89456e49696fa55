"""The embedded hosts on tiny models, as the benchmark runs them."""

import eagles
import glides
import torch
from tiny import Words, tiny_config
from transformers import LlamaForCausalLM

from svip_adapters.evaluation.hosts.eagle2 import Eagle2Host
from svip_adapters.evaluation.hosts.glide import GlideCapeHost, GlideHost
from svip_adapters.evaluation.hosts.transformers import TransformersHost


def llama(layers, seed):
    torch.manual_seed(seed)
    config = tiny_config(
        24,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        tie_word_embeddings=False,
        initializer_range=0.4,
        rms_norm_eps=1e-6,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def chain_host():
    """A draft that is the target with a little noise: some tokens are accepted, some are not."""
    target, draft = llama(2, 0), llama(2, 0)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += 0.04 * torch.randn_like(weight)
    return TransformersHost(target, draft, Words())


def eagle2_host():
    model = eagles.make()
    model.base_model.generation_config.eos_token_id = None
    return Eagle2Host(model.base_model, model.ea_layer, Words())


def glide_host(kind=GlideHost):
    model, target = glides.make()
    return kind(target, model.layer, Words())


HOSTS = {
    "transformers": chain_host,
    "eagle2": eagle2_host,
    "glide": glide_host,
    "glide_cape": lambda: glide_host(GlideCapeHost),
}
