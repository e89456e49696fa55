"""The embedded GliDe, alone and with CaPE, as benchmark hosts: SmolLM2-135M-Instruct, a drafter trained here.

``host`` drafts four tokens a round, as its authors do. A rule takes ``max_length`` behind an @, as in
``svip:threshold=0.5@max_length=8``; without it a draft is no longer than what the drafter was trained for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from svip_adapters import signals
from svip_adapters.adapters.glide import patch_glide
from svip_adapters.policies import parse_policy

from ..extras import import_extra
from ..meter import Meter
from ..policy_list import host_options, rule_of
from .base import Generation, timed
from .glide_layer import GlideLayer
from .glide_model import GlideModel
from .glide_tree import ALONE, CAPE
from .transformers import TransformersHost
from .tree_target import TreeTarget, tree_generation

__all__ = ["GlideCapeHost", "GlideHost"]

OPTIONS: dict[str, type] = {"max_length": int}


class GlideHost(TransformersHost):
    """A target and its drafter; ``plain`` is the target alone, in transformers' own ``generate``."""

    name = "glide"
    prob_to_top = ALONE

    def __init__(self, target: Any, layer: GlideLayer, tokenizer: Any, **names: str) -> None:
        super().__init__(target, layer, tokenizer, **names)
        self.model = GlideModel(layer, target)

    @classmethod
    def load(cls, *, dtype: str, device: str) -> GlideHost:
        from . import smollm2

        logging = import_extra("transformers.utils.logging")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        target = smollm2.load_target(dtype, device=device)
        names = {"target_name": "SmolLM2-135M-Instruct", "draft_name": f"smollm2-{cls.name}"}
        return cls(target, GlideLayer.trained(target), smollm2.load_tokenizer(), **names)

    def check(self, policy: str) -> None:
        host_options(policy, {} if rule_of(policy) in ("plain", "host") else OPTIONS)
        with self._under(policy):
            pass

    def generate(
        self, prompt: list[int], *, policy: str, max_new_tokens: int, temperature: float, seed: int
    ) -> Generation:
        if policy == "plain":
            return super().generate(
                prompt, policy=policy, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
            )
        inputs = self._tensor(prompt)
        arguments: dict[str, Any] = {
            "max_steps": max_new_tokens,
            "temperature": temperature or 1.0,
            "prob_to_top": self.prob_to_top,
            "do_speculative_sample": temperature > 0,
        }
        with self._under(policy), Meter(self.target, self.draft) as meter:
            torch.manual_seed(seed)
            seconds, output = timed(
                self.device, lambda: self.model.medusa_generate(inputs, self.target, **arguments)
            )
        return tree_generation(output["new"], output["rounds"], seconds, meter.draft_steps)

    @contextlib.contextmanager
    def _under(self, policy: str) -> Iterator[None]:
        rule, options = host_options(policy, OPTIONS)
        if rule in ("plain", "host"):
            yield
            return
        if policy not in self._rules:
            self._rules[policy] = parse_policy(rule)
        with patch_glide(self.model, policy=self._rules[policy], **options):
            yield

    def probe(self, prompt: list[int], ids: list[int]) -> list[tuple[float, bool]]:
        tokens, target = self._tensor(prompt + ids), TreeTarget(self.target)
        with torch.inference_mode():
            target.read(tokens[:, :-1])
            # Each token sees the keys before it: a first drafted token's view.
            keys = target.last_keys
            mask = torch.ones(tokens.shape[1] - 1, tokens.shape[1] - 1, device=tokens.device).tril(-1) > 0
            mask[0, 0] = True
            estimates, _ = self.draft(tokens[:, :-1], keys, cross_mask=mask)
            logits = self.model.head(estimates[0, -len(ids) :])
            entropy = signals.entropy(logits).tolist()
            agrees = (logits.argmax(dim=-1) == tokens[0, -len(ids) :]).tolist()
        return list(zip(entropy, agrees, strict=True))


class GlideCapeHost(GlideHost):
    """GliDe with CaPE, the authors' table of widths."""

    name = "glide_cape"
    prob_to_top = CAPE
