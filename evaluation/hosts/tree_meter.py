"""Counts a generation of upstream's ``EaModel`` from outside: forwards, and the trees it drafted."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from .base import Generation

__all__ = ["TreeMeter"]


class TreeMeter:
    """Context manager around one call of ``eagenerate`` or ``naivegenerate``.

    Args:
        model: with ``base_model`` and ``ea_layer``.
        prompt_length: tokens of the prompt.
    """

    def __init__(self, model: Any, prompt_length: int) -> None:
        self._model, self._prompt = model, prompt_length
        self._handles: list[Any] = []
        self._trees: list[tuple[int, int, int]] = []  # length of the sequence, nodes drafted, depth
        self._draft_steps = self._target_forwards = 0

    def __enter__(self) -> TreeMeter:
        # EaModel calls the target's body, naivegenerate the target: the body sees both.
        self._handles = [
            self._model.base_model.model.register_forward_pre_hook(self._on_target),
            self._model.ea_layer.register_forward_pre_hook(self._on_draft),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _on_target(self, *_: Any) -> None:
        self._target_forwards += 1

    def _on_draft(self, *_: Any) -> None:
        self._draft_steps += 1

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Within the block, note each tree of ``topK_genrate``, the host's own or a patch's."""
        layer = self._model.ea_layer
        own = vars(layer).get("topK_genrate")
        draft = layer.topK_genrate

        def topk_genrate(hidden_states: Any, input_ids: Any, head: Any, logits_processor: Any) -> Any:
            tree = draft(hidden_states, input_ids, head, logits_processor)
            self._trees.append((input_ids.shape[1], tree[0].shape[1] - 1, tree[1].shape[1] - 1))
            return tree

        layer.topK_genrate = topk_genrate
        try:
            yield
        finally:
            del layer.topK_genrate
            if own is not None:
                layer.topK_genrate = own

    def generation(self, ids: list[int], seconds: float) -> Generation:
        """What was counted, for an output cut to ``ids``.

        Every round's forward gains what it accepted and one token more; what the last one gained beyond
        ``ids`` is not counted. The last tree was drafted in vain, as upstream does.
        """
        rounds = [1] * len(ids)
        nodes = depths = [0] * len(ids)
        if self._trees:
            lengths = [self._prompt, *(length for length, _, _ in self._trees)]
            rounds = [after - before for before, after in itertools.pairwise(lengths)]
            nodes = [0, *(n for _, n, _ in self._trees[:-1])]
            depths = [0, *(d for _, _, d in self._trees[:-1])]
        gained, left = [], len(ids)
        for n in rounds:
            gained.append(min(n, left))
            left -= gained[-1]
        accepted = sum(min(n - 1, g) for n, g in zip(rounds, gained, strict=True))
        return Generation(
            ids=ids,
            seconds=seconds,
            accept_lengths=gained,
            draft_lengths=depths,
            accepted=accepted,
            draft_steps=self._draft_steps,
            target_forwards=self._target_forwards,
            nodes_verified=sum(nodes),
        )
