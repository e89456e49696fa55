"""EAGLE-2 generation on current transformers: draft a tree, verify it in one forward, keep a path."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..extras import import_extra
from .eagle_layer import EagleLayer
from .tree_verify import accept

__all__ = ["EagleModel", "Round"]


@dataclass(frozen=True)
class Round:
    """One forward of the target: tokens gained, nodes it verified, the tree's depth, nodes it accepted."""

    gained: int
    nodes: int = 0
    depth: int = 0
    accepted: int = 0


class EagleModel(nn.Module):
    """A target and its draft layer, one sequence at a time.

    Args:
        base_model: a LlamaForCausalLM.
        ea_layer: made for it.
    """

    def __init__(self, base_model: Any, ea_layer: EagleLayer) -> None:
        super().__init__()
        self.base_model, self.ea_layer = base_model, ea_layer
        parameters = inspect.signature(base_model.forward).parameters
        # transformers 5.x and 4.57
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

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
        head = self.base_model.lm_head
        self.ea_layer.reset_kv()
        cache = import_extra("transformers").DynamicCache()
        hidden = self._target(cache, input_ids)
        _, token = accept([-1], torch.zeros(1, 1, dtype=torch.long), head(hidden[0, -1:]), temperature)
        new, rounds = [token], [Round(gained=1)]
        while len(new) < max_new_tokens and new[-1] != eos_token_id:
            ids = torch.cat((input_ids, input_ids.new_tensor([new])), dim=1)
            tokens, paths, mask, depths = self.ea_layer.topK_genrate(hidden, ids, head, processor)
            start = ids.shape[1] - 1  # the root is in ids, and not in the cache
            hidden = self._target(cache, tokens, mask=mask, positions=start + depths)
            path, token = accept(tokens[0].tolist(), paths, head(hidden[0]), temperature)
            hidden = hidden[:, path]
            _keep(cache, start, path)
            gained = _until([*tokens[0, path[1:]].tolist(), token], eos_token_id, max_new_tokens - len(new))
            new += gained
            kept = min(len(gained), len(path) - 1)
            rounds.append(Round(len(gained), tokens.shape[1] - 1, int(paths.shape[1]) - 1, kept))
        return new, rounds

    def _target(
        self, cache: Any, ids: Tensor, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Last hidden states (1, L, H) of L tokens after what is cached."""
        arguments: dict[str, Any] = {self._cache_name: cache, "use_cache": True}
        if mask is not None and positions is not None:
            seen = mask.new_ones(*mask.shape[:3], cache.get_seq_length())
            visible = torch.cat((seen, mask), dim=3).to(ids.device) > 0
            arguments |= {"attention_mask": visible, "position_ids": positions[None]}
        hidden: Tensor = self.base_model.model(input_ids=ids, **arguments).last_hidden_state
        return hidden


def _keep(cache: Any, start: int, path: list[int]) -> None:
    """Of what the cache holds from ``start`` on, keep the nodes of ``path``; what is before is not moved."""
    nodes, end = torch.tensor(path) + start, start + len(path)
    for layer in cache.layers:
        for name in ("keys", "values"):
            tensor = getattr(layer, name)
            tensor[:, :, start:end] = tensor[:, :, nodes]
            setattr(layer, name, tensor[:, :, :end])


def _until(tokens: list[int], eos_token_id: int | None, most: int) -> list[int]:
    end = tokens.index(eos_token_id) + 1 if eos_token_id in tokens else len(tokens)
    return tokens[: min(end, most)]
