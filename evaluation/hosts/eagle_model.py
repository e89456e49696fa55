"""EAGLE-2 generation on current transformers: draft a tree, verify it in one forward, keep a path."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .eagle_layer import EagleLayer
from .tree_target import Round, TreeTarget, until
from .tree_verify import accept, first_token

__all__ = ["EagleModel"]


class EagleModel(nn.Module):
    """A target and its draft layer, one sequence at a time.

    Args:
        base_model: a LlamaForCausalLM.
        ea_layer: made for it.
    """

    def __init__(self, base_model: Any, ea_layer: EagleLayer) -> None:
        super().__init__()
        self.base_model, self.ea_layer = base_model, ea_layer

    @torch.inference_mode()
    def eagenerate(
        self,
        input_ids: Tensor,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        eos_token_id: int | None = None,
    ) -> tuple[list[int], list[Round]]:
        """Generate at most ``max_new_tokens``, up to and with the end-of-sequence token.

        Args:
            input_ids: (1, P) prompt. temperature: 0 is greedy.

        Returns:
            The new ids, and the rounds that gained them; the first is the forward over the prompt.
        """
        # Draft distributions are at temperature 1 in any case.
        processor: list[Any] | None = [] if temperature else None
        target = TreeTarget(self.base_model)
        head = target.head
        self.ea_layer.reset_kv()
        hidden = target.read(input_ids)
        new, rounds = [first_token(head(hidden[0, -1:]), temperature)], [Round(gained=1)]
        while len(new) < max_new_tokens and new[-1] != eos_token_id:
            ids = torch.cat((input_ids, input_ids.new_tensor([new])), dim=1)
            tokens, paths, mask, depths = self.ea_layer.topK_genrate(hidden, ids, head, processor)
            hidden = target.verify(tokens, mask, depths)
            path, token = accept(tokens[0].tolist(), paths, head(hidden[0]), temperature)
            hidden = hidden[:, path]
            target.keep(path, tokens.shape[1])
            gained = until([*tokens[0, path[1:]].tolist(), token], eos_token_id, max_new_tokens - len(new))
            new += gained
            kept = min(len(gained), len(path) - 1)
            rounds.append(Round(len(gained), tokens.shape[1] - 1, int(paths.shape[1]) - 1, kept))
        return new, rounds
