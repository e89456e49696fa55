"""What the tests of Hugging Face assisted generation share."""

import torch
from transformers import GenerationConfig, GenerationMixin

PROMPT = torch.tensor([[3, 7, 1, 5]])


def generate(target, draft=None, new=24, **kwargs):
    """New token ids only, greedy unless told."""
    torch.manual_seed(0)
    ids = target.generate(PROMPT, assistant_model=draft, max_new_tokens=new, **{"do_sample": False, **kwargs})
    return ids[0, PROMPT.shape[1] :].tolist()


def footprint(model):
    """Everything a patch could leave behind."""
    own = {name: value for name, value in vars(model).items() if not name.startswith("_")}
    seams = GenerationMixin._get_candidate_generator, GenerationConfig.get_generation_mode
    hooks = dict(model._forward_hooks), hasattr(model, "_svip_patch"), hasattr(model, "_svip_bridge")
    return own, seams, hooks, model.generation_config.to_dict(), model.generate.__func__
