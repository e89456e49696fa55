"""Draft after every prefix of an answer and note the distributions: chains, and trees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from svip_adapters.adapters.draft_tree import Drafter
from svip_adapters.policy import DraftStep

from ..extras import import_extra
from ..hosts.base import cache_keyword
from .nodes import NodeLog

__all__ = ["note_chain", "record_chains", "record_tree"]


def note_chain(log: NodeLog, logits: Sequence[Tensor]) -> None:
    """Note a drafted chain: (1, V) logits of each token, in order."""
    previous = -1
    for depth, row in enumerate(logits):
        best = row.float().log_softmax(-1).topk(log.k)
        step = DraftStep(row, depth=depth)
        previous = log.add(step, (best.values, best.indices), [previous], [0])[0]


@torch.inference_mode()
def record_chains(
    model: Any, prompt: Tensor, ids: list[int], *, length: int, top_k: int, eos: int | None
) -> NodeLog:
    """Before each of ``ids``, draft up to ``length`` tokens or to the end of the sequence.

    Args:
        model: a causal language model with transformers' interface. prompt: (1, P).
        eos: the end-of-sequence token.
    """
    log, cache = NodeLog(top_k), import_extra("transformers").DynamicCache()
    arguments = {cache_keyword(model): cache, "use_cache": True, "logits_to_keep": 1}
    for at in range(len(ids)):
        log.begin()
        context = torch.cat((prompt, torch.tensor([ids[:at]], dtype=torch.long, device=prompt.device)), dim=1)
        known, logits = context.shape[1], list[Tensor]()
        while len(logits) < length:
            output = model(input_ids=context[:, cache.get_seq_length() :], **arguments)
            logits.append(output.logits[:, -1])
            token = logits[-1].argmax(-1, keepdim=True)
            context = torch.cat((context, token), dim=1)
            if int(token) == eos:
                break
        if cache.get_seq_length() > known:
            cache.crop(known - cache.get_seq_length())
        note_chain(log, logits)
    return log


def record_tree(log: NodeLog, drafter: Drafter, *, levels: int, host_levels: int, floor: float) -> None:
    """One position of an answer: a tree of ``levels`` levels, the first distribution being the first.

    Noted are the distributions of the host's own frontiers, ``log.k`` wide, on its ``host_levels``, and of
    every node whose path is likelier than ``floor``.
    """
    log.begin()
    likely = math.log(floor)
    frontier, parents, children = drafter.first(), [-1], [0]
    logp, best = frontier.children(log.k)
    path, own = logp.new_zeros(1), torch.ones_like(best[:, 0], dtype=torch.bool)
    for level in range(levels):
        tokens = drafter.target_ids(best)
        step = frontier.step("branch", depth=level, path_logp=path, likeliest=None)
        rows = log.add(step, (logp, tokens), parents, children)
        reached = (logp + path[:, None]).nan_to_num(nan=-math.inf)
        going = reached > likely
        if level + 1 < host_levels:
            mine = _widest(reached.masked_fill(~own[:, None], -math.inf), log.k, level)
            going = going | mine
        else:
            mine = torch.zeros_like(going)
        chosen = going.flatten().nonzero()[:, 0]
        if level + 1 == levels or not len(chosen):
            return
        parents = [rows[i] for i in (chosen // log.k).tolist()]
        children, own, path = (chosen % log.k).tolist(), mine.flatten()[chosen], reached.flatten()[chosen]
        frontier = drafter.next(tokens.flatten()[chosen], chosen // log.k)
        logp, best = frontier.children(log.k)


def _widest(reached: Tensor, k: int, level: int) -> Tensor:
    """(N, k) bool: the k likeliest, picked as ``grow`` does, which takes the first level as it stands."""
    chosen = reached.flatten().topk(k).indices if level else torch.arange(k)
    mine = torch.zeros(reached.numel(), dtype=torch.bool, device=reached.device)
    mine[chosen] = True
    return mine.view_as(reached)
