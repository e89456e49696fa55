"""Is this EAGLE as the adapter knows it? Checked by structure, and on request by the trees it drafts."""

from __future__ import annotations

from typing import Any

import torch

from svip_adapters.errors import UnsupportedHostError
from svip_adapters.patching import require_parameters, warn_if_changed

from ._eagle1_layer import host_functions
from ._eagle_layer import host_tree

__all__ = ["compare_trees", "has_fixed_tree", "require_layer"]

# topK_genrate at the pin, and in eagle-llm 1.2.1. Another text of it works while its parameters and what it
# returns are the same.
_TESTED = {"eagle.model.cnets1": "38faf88445e9", "eagle.model.cnets": "145ae19f4655"}

_EAGLE1 = "244eb0d67b26"

_BOTH = ("topK_genrate", "reset", "reset_kv")
_DYNAMIC = (*_BOTH, "total_tokens", "depth", "top_k", "embed_tokens", "fc")
_FIXED = (*_BOTH, "tree_buffer", "repeat_hidden", "sample")


def has_fixed_tree(layer: Any) -> bool:
    """Whether it is EAGLE-1's layer, which knows its tree from the start."""
    return hasattr(layer, "tree_buffer")


def require_layer(model: Any, requires: str) -> Any:
    """The draft layer of an ``EaModel``, if it has everything that the adapter uses.

    Raises:
        UnsupportedHostError: it does not.
    """
    layer = getattr(model, "ea_layer", None)
    fixed = has_fixed_tree(layer)
    missing = [name for name in (_FIXED if fixed else _DYNAMIC) if not hasattr(layer, name)]
    if layer is None or missing:
        found = (
            f"{type(model).__name__} without ea_layer" if layer is None else f"no {', '.join(missing)} on it"
        )
        raise UnsupportedHostError(
            f"expected an EaModel whose ea_layer drafts a tree ({requires} or later), found {found}. "
            "Pass the object that EaModel.from_pretrained returns."
        )
    function = type(layer).topK_genrate
    more = ("max_length", "use_cache") if fixed else ()
    names = ("self", "hidden_states", "input_ids", "head", "logits_processor", *more)
    require_parameters(function, *names, exact=True)
    if fixed:
        _require_fixed(layer)
    # Of a fork, or a host of one's own, the parameters are all that is known.
    if tested := _EAGLE1 if fixed else _TESTED.get(type(layer).__module__):
        warn_if_changed(function, tested, "Pass verify=True to compare the trees.")
    return layer


def _require_fixed(layer: Any) -> None:
    if getattr(layer, "diff_device", False):
        raise UnsupportedHostError(
            "expected EAGLE-1 on one device, found its head on another one than its last layer. "
            "Load the model on one device."
        )
    try:
        host_functions(layer)
    except (ImportError, AttributeError) as error:
        raise UnsupportedHostError(
            f"expected generate_tree_buffers and top_k beside {type(layer).__module__}, as eagle-llm 1.2.1 "
            f"has them, found: {error}. Pass an EaModel of that package."
        ) from error


@torch.no_grad()
def compare_trees(layer: Any, head: Any) -> None:
    """Draft trees of random states with the host's function and with ours; all four tensors must agree.

    Raises:
        UnsupportedHostError: they do not.
    """
    width = layer.fc.in_features - (0 if hasattr(layer, "lm_head") else layer.embed_tokens.embedding_dim)
    random = torch.Generator().manual_seed(0)  # not the user's generator
    hidden = torch.randn(1, 8, width, generator=random).to(layer.fc.weight)
    ids = torch.randint(layer.embed_tokens.num_embeddings, (1, 9), generator=random).to(hidden.device)
    kept = getattr(layer, "stable_kv", None)
    processors: tuple[list[Any] | None, ...] = (None, [])
    try:
        for processor in processors:
            layer.reset_kv()
            theirs = type(layer).topK_genrate(layer, hidden, ids, head, processor)
            layer.reset_kv()
            _require_same(layer, host_tree(layer, hidden, ids, head, processor), theirs)
    finally:
        layer.reset()
        layer.stable_kv = kept


def _require_same(layer: Any, ours: Any, theirs: Any) -> None:
    names = ("draft_tokens", "retrieve_indices", "tree_mask", "tree_position_ids")
    wrong = [
        name
        for name, a, b in zip(names, ours, theirs, strict=True)
        if a.dtype != b.dtype or a.device != b.device or not torch.equal(a, b)
    ]
    if wrong:
        raise UnsupportedHostError(
            f"expected the tree of {type(layer).__module__}'s topK_genrate, found another "
            f"{', '.join(wrong)}. In half precision equal scores may fall either way: verify in float32. If "
            "this is float32, the host has changed: please report it. Nothing was patched."
        )
