"""The embedded EAGLE-2 as a benchmark host: SmolLM2-135M-Instruct with a draft layer trained here.

``host`` is EAGLE-2 as its authors set it: 59 drafted nodes, depth 7, top 10. Options of the tree stand behind
an @, see ``tree_rules.py``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from svip_adapters.adapters._eagle_layer import LayerDrafter

from ..errors import BenchError
from ..replay.nodes import NodeLog
from ..replay.recorders import record_tree
from .eagle_layer import EagleLayer
from .eagle_model import EagleModel
from .tree_host import TreeHost
from .tree_rules import SHAPE, TreeRules
from .tree_target import Round

__all__ = ["Eagle2Host"]


class Eagle2Host(TreeHost):
    """The embedded EAGLE-2."""

    name, drafter = "eagle2", "smollm2-eagle2"
    layer = EagleLayer

    def __init__(self, target: Any, layer: EagleLayer, tokenizer: Any, **names: str) -> None:
        super().__init__(target, layer, tokenizer, **names)
        self.model = EagleModel(target, layer)
        self._tree = TreeRules(self.model)

    @property
    def limits(self) -> dict[str, Any]:
        return {name: getattr(self.draft, name) for name in SHAPE}

    def check(self, policy: str) -> None:
        self._tree.check(policy)

    def forget(self) -> None:
        self._tree.forget()

    def under(self, policy: str) -> AbstractContextManager[None]:
        return self._tree.applied(policy)

    def run(self, inputs: Tensor, max_new_tokens: int, temperature: float) -> tuple[list[int], list[Round]]:
        return self.model.eagenerate(
            inputs,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            eos_token_id=self.target.generation_config.eos_token_id,
        )

    @torch.inference_mode()
    def record(self, prompt: list[int], ids: list[int], *, length: int, top_k: int, floor: float) -> NodeLog:
        if top_k != self.draft.top_k:
            raise BenchError(f"expected --top-k {self.draft.top_k}, the host's, found {top_k}.")
        tokens = self._tensor(prompt + ids)
        log, features = NodeLog(top_k), self.target.model(tokens).last_hidden_state
        log.begin()  # the forward over the prompt gains the first token: no draft goes with it
        self.draft.reset_kv()
        read = 0
        for end in range(len(prompt) + 1, len(prompt) + len(ids)):
            drafter = LayerDrafter(
                self.draft, features[:, read : end - 1], tokens[:, :end], self.target.lm_head
            )
            record_tree(log, drafter, levels=length, host_levels=self.draft.depth + 1, floor=floor)
            read = end - 1
        self.draft.reset()
        return log

    def draft_logits(self, tokens: Tensor, count: int) -> Tensor:
        features = self.target.model(tokens[:, :-2]).last_hidden_state
        estimates, _ = self.draft(features, tokens[:, 1:-1])
        logits: Tensor = self.target.lm_head(estimates[0, -count:])
        return logits
