"""The embedded EAGLE-2 as a benchmark host: SmolLM2-135M-Instruct with a draft layer trained here.

``host`` is EAGLE-2 as its authors set it: 59 drafted nodes, depth 7, top 10. After a rule or ``host``, ``@``
sets options of the tree: ``host@depth=3,total_tokens=20`` or ``svip:threshold=0.5@max_depth=9``
(see ``patch_eagle`` and ``EagleLayer``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from svip_adapters import signals
from svip_adapters.adapters.eagle import patch_eagle
from svip_adapters.policies import parse_policy

from ..extras import import_extra
from ..policy_list import host_options
from .base import Generation
from .eagle_layer import EagleLayer, load_layer
from .eagle_model import EagleModel
from .transformers import TransformersHost

__all__ = ["Eagle2Host"]

SHAPE: dict[str, type] = {"depth": int, "top_k": int, "total_tokens": int}
PRUNING: dict[str, type] = {"max_depth": int, "min_probability": float, "level_rule": str}


class Eagle2Host(TransformersHost):
    """A target and its draft layer; ``plain`` is the target alone, in transformers' own ``generate``."""

    name = "eagle2"

    def __init__(self, target: Any, layer: EagleLayer, tokenizer: Any, **names: str) -> None:
        super().__init__(target, layer, tokenizer, **names)
        self.model = EagleModel(target, layer)

    @classmethod
    def load(cls, *, dtype: str, device: str) -> Eagle2Host:
        from . import smollm2

        logging = import_extra("transformers.utils.logging")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        target = smollm2.load_target(dtype, device=device)
        names = {"target_name": "SmolLM2-135M-Instruct", "draft_name": "smollm2-eagle2"}
        return cls(target, load_layer(target), smollm2.load_tokenizer(), **names)

    def check(self, policy: str) -> None:
        rule, found = host_options(policy, SHAPE if policy.startswith("host") else SHAPE | PRUNING)
        if rule not in ("plain", "host"):
            with self._patched(rule, {k: v for k, v in found.items() if k in PRUNING}):
                pass

    def generate(
        self, prompt: list[int], *, policy: str, max_new_tokens: int, temperature: float, seed: int
    ) -> Generation:
        if policy == "plain":
            return super().generate(
                prompt, policy=policy, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
            )
        rule, found = host_options(policy, SHAPE | PRUNING)
        shape = {name: value for name, value in found.items() if name in SHAPE}
        pruning = {name: value for name, value in found.items() if name in PRUNING}
        inputs = self._tensor(prompt)
        with self._shaped(shape), self._patched(rule, pruning), _Forwards(self.draft) as forwards:
            torch.manual_seed(seed)
            self._synchronize()
            start = time.perf_counter()
            ids, rounds = self.model.eagenerate(
                inputs,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                eos_token_id=self.target.generation_config.eos_token_id,
            )
            self._synchronize()
            seconds = time.perf_counter() - start
        return Generation(
            ids=ids,
            seconds=seconds,
            accept_lengths=[r.gained for r in rounds],
            draft_lengths=[r.depth for r in rounds],
            accepted=sum(r.accepted for r in rounds),
            draft_steps=forwards.count,
            target_forwards=len(rounds),
            nodes_verified=sum(r.nodes for r in rounds),
        )

    @contextlib.contextmanager
    def _shaped(self, shape: dict[str, Any]) -> Iterator[None]:
        before = {name: getattr(self.draft, name) for name in SHAPE}
        try:
            vars(self.draft).update(shape)
            yield
        finally:
            vars(self.draft).update(before)

    @contextlib.contextmanager
    def _patched(self, rule: str, pruning: dict[str, Any]) -> Iterator[None]:
        if rule == "host":
            yield
            return
        if rule not in self._rules:
            self._rules[rule] = parse_policy(rule)
        with patch_eagle(self.model, policy=self._rules[rule], **pruning):
            yield

    def probe(self, prompt: list[int], ids: list[int]) -> list[tuple[float, bool]]:
        tokens = self._tensor(prompt + ids)
        with torch.inference_mode():
            features = self.target.model(tokens[:, :-2]).last_hidden_state
            estimates, _ = self.draft(features, tokens[:, 1:-1])
            logits = self.target.lm_head(estimates[0, -len(ids) :])
            entropy = signals.entropy(logits).tolist()
            agrees = (logits.argmax(dim=-1) == tokens[0, -len(ids) :]).tolist()
        return list(zip(entropy, agrees, strict=True))

    def gap(self, *arguments: Any) -> float | None:
        """Not told: it would take the trees that were verified, and they are not kept."""
        return None


class _Forwards:
    """Counts forwards of a module."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self.count = module, 0

    def _add(self, *_: Any) -> None:
        self.count += 1

    def __enter__(self) -> _Forwards:
        self._handle = self._module.register_forward_pre_hook(self._add)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
