"""EAGLE's draft layer under a policy: what stands in for its ``topK_genrate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from svip_adapters.errors import PolicyError
from svip_adapters.patching import Patch
from svip_adapters.policy import LengthPolicy, RoundContext

from ._bridge import NotCopied, node_floor, plan_length
from ._eagle_round import RoundLedger, read_accepted
from ._tree_arrays import Tree
from ._tree_steps import DraftedFrontier, Frontier, LevelRule
from .draft_tree import Grown, TreeShape, grow

__all__ = ["Bridge", "LayerDrafter", "Options", "host_tree"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user chose in ``patch_eagle``.

    Raises:
        PolicyError: an option that makes no sense.
    """

    max_depth: int | None = None
    min_probability: float = 0.0
    level_rule: LevelRule = "branch"

    def __post_init__(self) -> None:
        if self.max_depth is not None and (not isinstance(self.max_depth, int) or self.max_depth < 1):
            raise PolicyError(
                "expected max_depth to be a whole number of at least 1, found "
                f"{self.max_depth!r}; None is the host's."
            )
        if not 0 <= self.min_probability < 1:
            raise PolicyError(f"expected min_probability from 0 to below 1, found {self.min_probability!r}.")
        if self.level_rule not in get_args(LevelRule):
            raise PolicyError(
                f"expected level_rule to be one of {get_args(LevelRule)}, found {self.level_rule!r}."
            )


class Bridge(NotCopied):
    """Stands in for one layer's ``topK_genrate``."""

    def __init__(self, layer: Any, patch: Patch, options: Options) -> None:
        self._layer, self._options, self._policy = layer, options, patch.policy
        self._ledger = RoundLedger(patch)

    @torch.no_grad()
    def draft(
        self, hidden_states: Tensor, input_ids: Tensor, head: Any, logits_processor: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One round: see the host's ``topK_genrate`` for what goes in and comes out."""
        length = input_ids.shape[1]
        if getattr(self._layer, "stable_kv", None) is None:  # the host has reset it: a sequence starts
            self._ledger.begin()
        self._ledger.settle(length)
        shape = self._shape(length)
        grown = _grow(self._layer, self._policy, shape, hidden_states, input_ids, head, logits_processor)
        tree = grown.tree
        self._ledger.drafted(
            length, nodes=len(tree.tokens), depth=tree.depth, early=grown.early, forwards=grown.levels
        )
        return _as_host(tree, input_ids[:, -1].to(hidden_states.device))

    def _shape(self, length: int) -> TreeShape:
        layer, options = self._layer, self._options
        levels = layer.depth + 1 if options.max_depth is None else options.max_depth
        context = RoundContext(context_length=length, remaining=levels)
        planned = max(1, plan_length(self._policy, context))
        return TreeShape(
            budget=layer.total_tokens,
            top_k=layer.top_k,
            levels=planned,
            min_probability=node_floor(self._policy, options.min_probability),
            level_rule=options.level_rule,
        )


class LayerDrafter:
    """The authors' draft layer as ``draft_tree.Drafter``: one round of one sequence."""

    def __init__(self, layer: Any, hidden_states: Tensor, input_ids: Tensor, head: Any) -> None:
        self._layer = layer
        own = getattr(layer, "lm_head", None)  # EAGLE-3's; EAGLE-2 uses the target's
        self._head = head if own is None else lambda hidden: own(layer.norm(hidden))
        self._offsets = getattr(layer, "d2t", None)  # deleted where both vocabularies are the same
        self._hidden, self._past, self._position = read_accepted(layer, hidden_states, input_ids)
        self._nodes = 0  # drafted on so far
        self._columns = torch.empty(1, 0, dtype=torch.long, device=self._hidden.device)

    def first(self) -> Frontier:
        return DraftedFrontier(self._head(self._hidden[:, -1]))

    def next(self, tokens: Tensor, rows: Tensor) -> Frontier:
        positions = torch.full_like(tokens, self._position)
        self._position += 1
        self._layer.tree_mask = self._extend_mask(rows)
        self._hidden, self._past = self._layer(
            self._hidden[:, rows],
            input_ids=tokens[None],
            past_key_values=self._past,
            position_ids=positions,
            use_cache=True,
        )
        return DraftedFrontier(self._head(self._hidden[0]))

    def _extend_mask(self, rows: Tensor) -> Tensor:
        """(1, 1, width, nodes so far) for one level more: a node sees its ancestors and itself."""
        start, self._nodes = self._nodes, self._nodes + len(rows)
        own = torch.arange(start, self._nodes, device=rows.device)
        self._columns = torch.cat((self._columns[rows], own[:, None]), dim=1)
        mask = torch.zeros(len(rows), self._nodes, device=rows.device)
        return mask.scatter_(1, self._columns, 1.0)[None, None]

    def target_ids(self, tokens: Tensor) -> Tensor:
        return tokens if self._offsets is None else tokens + self._offsets[tokens]


def _as_host(tree: Tree, root: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four tensors of ``topK_genrate``: tokens (1, n + 1), paths, mask (1, 1, n + 1, n + 1), depths."""
    tokens = torch.cat((root, tree.tokens))[None]
    return tokens, tree.paths, tree.mask.float()[None, None], tree.depths.to(root.device)


def _grow(
    layer: Any,
    policy: LengthPolicy | None,
    shape: TreeShape,
    hidden_states: Tensor,
    input_ids: Tensor,
    head: Any,
    logits_processor: Any,
) -> Grown:
    # At temperature 1 the processor is an empty list: never ask for its truth.
    ordered = logits_processor is not None
    try:
        return grow(LayerDrafter(layer, hidden_states, input_ids, head), policy, shape, ordered=ordered)
    finally:
        layer.reset()  # of the tree mask; the host does so only before the next draft


def host_tree(
    layer: Any, hidden_states: Tensor, input_ids: Tensor, head: Any, logits_processor: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tree that no policy stopped: what the authors' ``topK_genrate`` returns, bit for bit in float32."""
    shape = TreeShape(budget=layer.total_tokens, top_k=layer.top_k, levels=layer.depth + 1)
    grown = _grow(layer, None, shape, hidden_states, input_ids, head, logits_processor)
    return _as_host(grown.tree, input_ids[:, -1].to(hidden_states.device))
