"""The embedded GliDe, alone and with CaPE, as benchmark hosts: SmolLM2-135M-Instruct, a drafter trained here.

``host`` drafts four tokens a round, as its authors do. A rule takes ``max_length`` behind an @, as in
``svip:threshold=0.5@max_length=8``; without it a draft is no longer than what the drafter was trained for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from svip_adapters.adapters.glide import patch_glide
from svip_adapters.policies import parse_policy

from ..policy_list import host_options, rule_of
from ..replay.nodes import NodeLog
from ..replay.recorders import note_chain
from .glide_layer import GlideLayer, block_mask
from .glide_model import DRAFTED, GlideModel, greedy_search
from .glide_tree import ALONE, CAPE
from .tree_host import TreeHost
from .tree_target import Round, TreeTarget

__all__ = ["GlideCapeHost", "GlideHost"]

OPTIONS: dict[str, type] = {"max_length": int}


class GlideHost(TreeHost):
    """The embedded GliDe, which drafts chains."""

    name, drafter = "glide", "smollm2-glide"
    layer = GlideLayer
    prob_to_top = ALONE

    def __init__(self, target: Any, layer: GlideLayer, tokenizer: Any, **names: str) -> None:
        super().__init__(target, layer, tokenizer, **names)
        self.model = GlideModel(layer, target)

    @property
    def limits(self) -> dict[str, Any]:
        own = {"drafted": DRAFTED, "max_length": self.draft.config.block_size}
        return own if self.prob_to_top == ALONE else own | {"prob_to_top": list(self.prob_to_top)}

    def check(self, policy: str) -> None:
        host_options(policy, {} if rule_of(policy) in ("plain", "host") else OPTIONS)
        with self.under(policy):
            pass

    @contextlib.contextmanager
    def under(self, policy: str) -> Iterator[None]:
        rule, options = host_options(policy, OPTIONS)
        if rule in ("plain", "host"):
            yield
            return
        if policy not in self._rules:
            self._rules[policy] = parse_policy(rule)
        with patch_glide(self.model, policy=self._rules[policy], **options):
            yield

    def run(self, inputs: Tensor, max_new_tokens: int, temperature: float) -> tuple[list[int], list[Round]]:
        output = self.model.medusa_generate(
            inputs,
            self.target,
            max_steps=max_new_tokens,
            temperature=temperature or 1.0,
            prob_to_top=self.prob_to_top,
            do_speculative_sample=temperature > 0,
        )
        return output["new"], output["rounds"]

    @torch.inference_mode()
    def record(self, prompt: list[int], ids: list[int], *, length: int, top_k: int, floor: float) -> NodeLog:
        tokens, log = self._tensor(prompt + ids), NodeLog(top_k)
        target = TreeTarget(self.target)
        target.read(tokens)
        log.begin()  # the forward over the prompt gains the first token: no draft goes with it
        self.model.past_key_values = None
        for end in range(len(prompt) + 1, len(prompt) + len(ids)):
            keys, values = (part[:, :, : end - 1] for part in target.last_keys)
            output = greedy_search(
                self.model,
                tokens[:, :end],
                stopping_criteria=lambda ids, scores: len(scores) >= length,
                large_key_values=(keys, values),
            )
            log.begin()
            note_chain(log, output["scores"])
        return log

    def draft_logits(self, tokens: Tensor, count: int) -> Tensor:
        target = TreeTarget(self.target)
        target.read(tokens[:, :-1])
        # In blocks of one token each sees the keys before it: a first drafted token's view.
        mask = block_mask(tokens.shape[1] - 1, 1).to(tokens.device)
        estimates, _ = self.draft(tokens[:, :-1], target.last_keys, cross_mask=mask)
        logits: Tensor = self.model.head(estimates[0, -count:])
        return logits


class GlideCapeHost(GlideHost):
    """GliDe with CaPE, the authors' table of widths."""

    name = "glide_cape"
    prob_to_top = CAPE
