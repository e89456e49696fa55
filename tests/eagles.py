"""A tiny embedded EAGLE-2, shared by the tests of its adapter."""

import torch
from tiny import tiny_target

from svip_adapters.evaluation.hosts.eagle_layer import EagleLayer
from svip_adapters.evaluation.hosts.eagle_model import EagleModel

PROMPT = torch.tensor([[3, 7, 1, 5, 9, 11]])
NEW = 30


def make(noise=0.3, **shape):
    """A tiny target and a draft layer that agrees with it now and then: it is the target's last one."""
    target = tiny_target(40)
    torch.manual_seed(1)
    layer = EagleLayer(target, **{"total_tokens": 20, "depth": 4, "top_k": 4, **shape})
    own = target.model.layers[-1].state_dict()
    layer.layers[0].load_state_dict({k: v for k, v in own.items() if "input_layernorm" not in k})
    eye = torch.eye(target.config.hidden_size)
    layer.fc.weight.data = torch.cat((eye, noise * eye), dim=1)
    return EagleModel(target, layer).eval()


def generate(model, new=NEW, **options):
    torch.manual_seed(0)
    return model.eagenerate(PROMPT, max_new_tokens=new, **options)[0]
