"""A tiny embedded GliDe that has learnt its target a little, shared by the tests of its adapter."""

import copy
import functools

import torch
from tiny import tiny_target

from svip_adapters.evaluation.hosts.glide_layer import block_mask
from svip_adapters.evaluation.hosts.glide_model import GlideModel
from svip_adapters.evaluation.hosts.tree_target import TreeTarget
from svip_adapters.evaluation.train import glide

V, NEW = 24, 30
PROMPT = torch.tensor([[3, 7, 1, 5, 9, 11]])


@functools.cache
def _trained():
    target = tiny_target(V)
    target.generation_config.eos_token_id = None
    layer = glide.new_layer(target)
    torch.manual_seed(0)
    with torch.no_grad():
        layer.projection.weight.copy_(0.1 * torch.eye(32))
        ids = target.generate(torch.randint(V, (64, 4)), do_sample=True, max_new_tokens=28)
        sequences = TreeTarget(target)
        wanted = target.lm_head(sequences.read(ids)).softmax(-1)
        keys = sequences.last_keys
    optimizer = torch.optim.Adam([p for p in layer.parameters() if p.requires_grad], lr=1e-2)
    for step in range(150):
        estimates, _ = layer(ids, keys, cross_mask=block_mask(ids.shape[1], 5, step % 5))
        loss = -(wanted * target.lm_head(estimates).log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return target, layer.requires_grad_(False).eval()


def make():
    """(drafter, target): fresh ones, with the same weights each time."""
    target, layer = copy.deepcopy(_trained())
    return GlideModel(layer, target), target


def generate(pair, new=NEW, **options):
    torch.manual_seed(0)
    model, target = pair
    return model.medusa_generate(PROMPT, target, max_steps=new, **options)["new"]
