"""Is this EAGLE as the adapter knows it? Checked by structure, and on request by the trees it drafts."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from svip_adapters.errors import UnsupportedHostError
from svip_adapters.patching import fingerprint, require_parameters

from ._eagle_layer import host_tree

__all__ = ["compare_trees", "has_fixed_tree", "require_layer"]

# topK_genrate at the pin, and in eagle-llm 1.2.1. Another text of it works while its parameters and what it
# returns are the same.
_TESTED = {"eagle.model.cnets1": "38faf88445e9", "eagle.model.cnets": "145ae19f4655"}

_EAGLE1 = "244eb0d67b26"

_DYNAMIC = ("total_tokens", "depth", "top_k", "reset", "reset_kv", "embed_tokens")
_FIXED = ("tree_buffer", "reset", "reset_kv", "repeat_hidden", "sample")


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
    require_parameters(function, "self", "hidden_states", "input_ids", "head", "logits_processor", *more)
    if getattr(layer, "diff_device", False) and fixed:
        raise UnsupportedHostError(
            "expected EAGLE-1 on one device, found its head on another one than its last layer. "
            "Load the model on one device."
        )
    tested = _EAGLE1 if fixed else _TESTED.get(type(layer).__module__)
    if tested not in (None, found := fingerprint(function)):
        warnings.warn(
            f"expected {function.__qualname__} as tested ({tested}), found another text of it ({found}); its "
            "parameters are the same. Pass verify=True to compare the trees.",
            stacklevel=3,
        )
    return layer


@torch.no_grad()
def compare_trees(layer: Any, head: Any) -> None:
    """Draft trees of random states with the host's function and with ours; all four tensors must agree."""
    width = layer.fc.in_features - (0 if hasattr(layer, "lm_head") else layer.embed_tokens.embedding_dim)
    random = torch.Generator().manual_seed(0)  # not the user's generator
    hidden = torch.randn(1, 8, width, generator=random).to(layer.fc.weight)
    ids = torch.randint(layer.embed_tokens.num_embeddings, (1, 9), generator=random).to(hidden.device)
    kept = getattr(layer, "stable_kv", None)
    processors: tuple[list[Any] | None, ...] = (None, [])
    for processor in processors:
        layer.reset_kv()
        theirs = type(layer).topK_genrate(layer, hidden, ids, head, processor)
        layer.reset_kv()
        ours = host_tree(layer, hidden, ids, head, processor)
        names = ("draft_tokens", "retrieve_indices", "tree_mask", "tree_position_ids")
        wrong = [name for name, a, b in zip(names, ours, theirs, strict=True) if not torch.equal(a, b.to(a))]
        if wrong:
            raise UnsupportedHostError(
                f"expected the tree of {type(layer).__module__}'s topK_genrate, found another "
                f"{', '.join(wrong)}. In half precision equal scores may fall either way: verify in float32. "
                "If this is float32, the host has changed: please report it. Nothing was patched."
            )
    layer.reset()
    layer.stable_kv = kept
