"""What the embedded hosts that verify trees have in common as benchmark hosts."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..meter import Meter
from .base import Generation, timed
from .draft_layer import DraftLayer
from .transformers import TransformersHost
from .tree_target import Round

__all__ = ["TreeHost"]


class TreeHost(TransformersHost):
    """A target and its draft layer; ``plain`` is the target alone, in transformers' own ``generate``.

    Attributes:
        layer: class of the draft layer.
    """

    layer: ClassVar[type[DraftLayer]]
    tokens_decide = False

    @classmethod
    def load_draft(cls, target: Any) -> Any:
        return cls.layer.trained(target)

    @abstractmethod
    def under(self, policy: str) -> AbstractContextManager[None]:
        """Within the block the host drafts under ``policy``, which is not ``plain``."""

    @abstractmethod
    def run(self, inputs: Tensor, max_new_tokens: int, temperature: float) -> tuple[list[int], list[Round]]:
        """Generate after ``inputs`` (1, P): new ids and the rounds that gained them."""

    def generate(
        self, prompt: list[int], *, policy: str, max_new_tokens: int, temperature: float, seed: int
    ) -> Generation:
        if policy == "plain":
            return super().generate(
                prompt, policy=policy, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
            )
        inputs = self._tensor(prompt)
        with self.under(policy), Meter(self.target, self.draft) as meter:
            torch.manual_seed(seed)
            seconds, (ids, rounds) = timed(self.device, lambda: self.run(inputs, max_new_tokens, temperature))
        return Generation(
            ids=ids,
            seconds=seconds,
            accept_lengths=[r.gained for r in rounds],
            draft_lengths=[r.depth for r in rounds],
            accepted=sum(r.accepted for r in rounds),
            draft_steps=meter.draft_steps,
            target_forwards=len(rounds),
            nodes_verified=sum(r.nodes for r in rounds),
        )
