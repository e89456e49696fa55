"""EAGLE-1's draft layer under a policy (PyPI's ``eagle-llm==1.2.1``): its tree is fixed, so levels stop.

The target verifies with index tables made for one tree. A draft that stops after d levels needs the tables of
the tree's first d levels: they are made once, with the host's own function, and written into the dictionary
that the host's loop reads each round. The host takes the mask of the first round of a sequence before it
drafts, so that round always drafts the whole tree.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch import Tensor

from svip_adapters.errors import UnsupportedHostError
from svip_adapters.patching import Patch
from svip_adapters.policy import RoundContext

from ._bridge import NotCopied, plan_length
from ._eagle_round import RoundLedger, read_accepted
from ._tree_steps import LevelRule, tree_step, tree_stop

__all__ = ["FixedTreeBridge", "host_functions"]


class FixedTreeBridge(NotCopied):
    """Stands in for ``topK_genrate`` and ``reset_kv`` of an EAGLE-1 layer.

    Args:
        model: an EAGLE-1 ``EaModel``.
        rule: see ``LevelRule``; a level ends the draft when all its nodes stop.
    """

    def __init__(self, model: Any, patch: Patch, rule: LevelRule) -> None:
        self._model, self._layer, self._rule = model, model.ea_layer, rule
        self._policy, self._ledger = patch.policy, RoundLedger(patch)
        self._make_tables, self._top_k = host_functions(self._layer)
        self._reset_kv = self._layer.reset_kv
        self._tables: dict[int, dict[str, Any]] = {}
        self._choices: Any = None

    def reset_kv(self) -> None:
        """A sequence starts: the host is about to read the whole tree's mask."""
        self.restore()
        self._ledger.begin()
        self._reset_kv()

    def restore(self) -> None:
        """Put the whole tree's tables back."""
        if self._tables and self._model.tree_choices == self._choices:
            self._model.tree_buffers.update(self._tables[max(self._tables)])

    @torch.no_grad()
    def draft(
        self,
        hidden_states: Tensor,
        input_ids: Tensor,
        head: Any,
        logits_processor: Any,
        max_length: int = 4,
        use_cache: bool = True,
    ) -> tuple[Tensor, Tensor, list[Any]]:
        """One round: see the host's ``topK_genrate``; fewer rows come out when levels are left out."""
        _refuse_warped(logits_processor)
        length, first = input_ids.shape[1], self._layer.stable_kv is None
        self._ledger.settle(length)
        depth = 1 + len(self._layer.tree_buffer["tree_indices"])
        context = RoundContext(context_length=length, remaining=depth)
        limit = depth if first else max(1, plan_length(self._policy, context))
        levels = _Levels(self._layer, hidden_states, input_ids, head, logits_processor, self._top_k)
        early = not first and self._draft_under_policy(levels, limit)
        while levels.count < limit and not early:
            levels.extend()
            levels.draw()
        self._layer.reset()
        self._use_tables(levels.count, depth)
        nodes, forwards = len(self._model.tree_buffers["tree_indices"]) - 1, levels.depth + 1
        self._ledger.drafted(length, nodes=nodes, depth=levels.count, early=early, forwards=forwards)
        return torch.cat(levels.tokens), torch.cat(levels.probabilities), levels.distributions

    def _draft_under_policy(self, levels: _Levels, limit: int) -> bool:
        """Draft until the policy or ``limit`` ends it; whether the policy did."""
        before = self._policy.stops_before
        while levels.count < limit:
            if not before and self._stops(levels):
                return True
            levels.extend()
            if before and self._stops(levels):
                return True
            levels.draw()
        return False

    def _stops(self, levels: _Levels) -> bool:
        likeliest = None if self._policy.stops_before else levels.tokens[-1][:, 0]
        step = tree_step(
            levels.logits,
            self._rule,
            depth=levels.depth,
            path_logp=levels.path_logp,
            likeliest=likeliest,
        )
        return bool(tree_stop(self._policy, step, self._rule).all())

    def _use_tables(self, levels: int, depth: int) -> None:
        """Let the host verify the tree's first ``levels`` levels."""
        model = self._model
        if model.tree_choices != self._choices:
            self._choices, self._tables = model.tree_choices, {depth: dict(model.tree_buffers)}
        if levels not in self._tables:
            device = model.tree_buffers["tree_indices"].device
            tables = self._make_tables([path for path in self._choices if len(path) <= levels], device=device)
            heads = model.tree_buffers["retrieve_indices_head"].device
            self._tables[levels] = tables | {"retrieve_indices_head": tables["retrieve_indices"].to(heads)}
        model.tree_buffers.update(self._tables[levels])
        model.base_model.model.tree_mask = self._tables[levels]["tree_attn_mask"]


def host_functions(layer: Any) -> tuple[Any, int]:
    """The host's function that makes tables for a tree, and how many children it drafts of a node."""
    module = type(layer).__module__
    utils = importlib.import_module(f"{module.rpartition('.')[0]}.utils")
    return utils.generate_tree_buffers, sys.modules[module].top_k


def _refuse_warped(logits_processor: Any) -> None:
    """Where a whole path is accepted, EAGLE-1 draws the next token at temperature 1, whatever was asked for;
    shorter trees would make that more frequent."""
    if logits_processor:
        raise UnsupportedHostError(
            "expected temperature 0 or 1, and neither top_p nor top_k, with a policy on EAGLE-1, found "
            "another one: its own verification does not keep to it after a fully accepted path (eagle-llm "
            "1.2.1, evaluate_posterior). Use one of these, revert the patch, or use EAGLE-2."
        )


class _Levels:
    """The draft of one round, level by level; the first level's tokens are drawn at once.

    Attributes:
        logits: (N, V) of the frontier. path_logp: (N,).
        depth: tokens drafted before those of the frontier; also the draft's forwards after its first.
        tokens, probabilities, distributions: of each level drawn, as the host wants them.
    """

    def __init__(
        self, layer: Any, hidden_states: Tensor, input_ids: Tensor, head: Any, processor: Any, top_k: int
    ) -> None:
        self._layer, self._head, self._processor, self._top_k = layer, head, processor, top_k
        self.tokens: list[Tensor] = []
        self.probabilities: list[Tensor] = []
        self.distributions: list[Any] = []
        self._hidden, self._past, self._position = read_accepted(layer, hidden_states, input_ids)
        self.logits: Tensor = head(self._hidden[:, -1])
        self.path_logp = self.logits.new_zeros(1, dtype=torch.float32)
        self.depth = 0
        self.draw()

    @property
    def count(self) -> int:
        """Levels drawn."""
        return len(self.tokens)

    def draw(self) -> None:
        """The children of the frontier: the likeliest, or drawn without replacement by the host itself."""
        if self._processor is None:
            probabilities, tokens = self.logits.topk(self._top_k)
            distribution = None
        else:
            drawn = self._layer.sample(self.logits, self._processor, k=self._top_k)
            tokens, probabilities, distribution = drawn
        self.tokens.append(tokens)
        self.probabilities.append(probabilities)
        self.distributions.append(distribution)

    def extend(self) -> None:
        """One forward over those nodes of the last level that have children in the tree."""
        layer, tables, level, tokens = self._layer, self._layer.tree_buffer, self.depth, self.tokens[-1]
        chosen = tables["tree_indices"][level]
        reached = self.logits.float().log_softmax(-1).gather(-1, tokens) + self.path_logp[:, None]
        self.path_logp = reached.view(-1)[chosen]
        layer.tree_mask = tables["attn_mask"][level]
        self._hidden, self._past = layer(
            layer.repeat_hidden(self._hidden, tables["repeat_nums"][level]),
            input_ids=tokens.view(-1)[chosen][None],
            past_key_values=self._past,
            position_ids=self._position + tables["position_ids"][level],
            use_cache=True,
        )
        self._position += 1
        self.logits = self._head(self._hidden[0])
        self.depth += 1
