"""The embedded EAGLE-2 as a benchmark host: SmolLM2-135M-Instruct with a draft layer trained here.

``host`` is EAGLE-2 as its authors set it: 59 drafted nodes, depth 7, top 10. Options of the tree stand behind
an @, see ``tree_rules.py``.
"""

from __future__ import annotations

from typing import Any

import torch

from svip_adapters import signals

from ..extras import import_extra
from ..meter import Meter
from .base import Generation, timed
from .eagle_layer import EagleLayer
from .eagle_model import EagleModel
from .transformers import TransformersHost
from .tree_rules import TreeRules
from .tree_target import tree_generation

__all__ = ["Eagle2Host"]


class Eagle2Host(TransformersHost):
    """A target and its draft layer; ``plain`` is the target alone, in transformers' own ``generate``."""

    name = "eagle2"

    def __init__(self, target: Any, layer: EagleLayer, tokenizer: Any, **names: str) -> None:
        super().__init__(target, layer, tokenizer, **names)
        self.model = EagleModel(target, layer)
        self._tree = TreeRules(self.model)

    @classmethod
    def load(cls, *, dtype: str, device: str) -> Eagle2Host:
        from . import smollm2

        logging = import_extra("transformers.utils.logging")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        target = smollm2.load_target(dtype, device=device)
        names = {"target_name": "SmolLM2-135M-Instruct", "draft_name": "smollm2-eagle2"}
        return cls(target, EagleLayer.trained(target), smollm2.load_tokenizer(), **names)

    def check(self, policy: str) -> None:
        self._tree.check(policy)

    def generate(
        self, prompt: list[int], *, policy: str, max_new_tokens: int, temperature: float, seed: int
    ) -> Generation:
        if policy == "plain":
            return super().generate(
                prompt, policy=policy, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
            )
        inputs = self._tensor(prompt)
        arguments = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "eos_token_id": self.target.generation_config.eos_token_id,
        }
        with self._tree.applied(policy), Meter(self.target, self.draft) as meter:
            torch.manual_seed(seed)
            seconds, (ids, rounds) = timed(self.device, lambda: self.model.eagenerate(inputs, **arguments))
        return tree_generation(ids, rounds, seconds, meter.draft_steps)

    def probe(self, prompt: list[int], ids: list[int]) -> list[tuple[float, bool]]:
        tokens = self._tensor(prompt + ids)
        with torch.inference_mode():
            features = self.target.model(tokens[:, :-2]).last_hidden_state
            estimates, _ = self.draft(features, tokens[:, 1:-1])
            logits = self.target.lm_head(estimates[0, -len(ids) :])
            entropy = signals.entropy(logits).tolist()
            agrees = (logits.argmax(dim=-1) == tokens[0, -len(ids) :]).tolist()
        return list(zip(entropy, agrees, strict=True))
