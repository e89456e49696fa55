"""EAGLE-2 and EAGLE-3 as their authors ship them (SafeAILab/EAGLE, ``eagle.model.ea_model.EaModel``).

Seam: ``ea_layer.topK_genrate``, which drafts one tree and returns it as four tensors. It is replaced on the
instance; the draft layer, the target, verification and sampling stay the authors'. Its parameters have not
changed since EAGLE-2's first commit, and that is what is checked: PyPI and the repository both call their
distribution eagle-llm, so a version number says nothing.

Not reached: ``naivegenerate``, which drafts nothing. The host's limit of new tokens is not known at the
seam, so a policy is told that there is room for a whole tree.
"""

from __future__ import annotations

import warnings
from typing import Any, get_args

import torch

from svip_adapters.errors import PolicyError, UnsupportedHostError
from svip_adapters.patching import Patch, fingerprint, require_parameters
from svip_adapters.policy import LengthPolicy

from ._bridge import choose_policy
from ._eagle_layer import Bridge, Options, host_tree
from ._tree_steps import LevelRule

__all__ = ["REQUIRES", "patch_eagle"]

REQUIRES = "eagle-llm @ git+https://github.com/SafeAILab/EAGLE@cb7e084"

# topK_genrate at the pin. Another text of it works while its parameters and what it returns are the same.
_TESTED = {"eagle.model.cnets1": "38faf88445e9", "eagle.model.cnets": "145ae19f4655"}

_NAMES = ("total_tokens", "depth", "top_k", "reset", "reset_kv", "embed_tokens")


def patch_eagle(
    model: Any,
    threshold: float | None = None,
    *,
    policy: LengthPolicy | None = None,
    max_depth: int | None = None,
    min_probability: float = 0.0,
    level_rule: LevelRule = "branch",
    verify: bool = False,
) -> Patch:
    """Let a length policy prune EAGLE's draft tree, branch by branch.

    Afterwards ``model.eagenerate`` drafts under it. The model's ``total_tokens`` (most nodes), ``top_k`` and
    ``depth`` count as before and may be changed between calls.

    Args:
        model: an ``EaModel``, EAGLE-2 or EAGLE-3.
        threshold: short for ``policy=SVIP(threshold=...)``; with neither, ``SVIP()``.
        policy: any ``LengthPolicy``; ``max_length`` and ``plan`` count levels. One level is always drafted:
            the host cannot verify a tree without nodes.
        max_depth: most levels; None means the host's, ``depth + 1``. A branch that stays certain may then go
            deeper than the host's, within the same budget of nodes.
        min_probability: nodes of a path that is no likelier than this are not sent to the target, so
            ``total_tokens`` becomes a ceiling (see ``TreeShape``).
        level_rule: "branch", "best" or "mean" (see ``LevelRule``).
        verify: first draft a tree of random states with a policy that never stops and compare all four
            tensors with the host's own. Exact in float32 only.

    Returns:
        A ``Patch``: ``.stats`` counts nodes sent to the target as drafted; ``.revert()`` restores.

    Raises:
        UnsupportedHostError: no ``EaModel``, one with other parameters, or ``verify`` found a difference.
        PolicyError: threshold and policy both given, or an option that makes no sense.
        PatchError: the model is patched already.
    """
    layer = _require_host(model)
    options = _checked(max_depth, min_probability, level_rule)
    chosen = choose_policy(threshold, policy)
    if verify:
        _compare(layer, model.base_model.lm_head)
    patch = Patch(model, chosen)
    patch.set(layer, "topK_genrate", Bridge(layer, patch, options).draft)
    return patch


def _require_host(model: Any) -> Any:
    layer = getattr(model, "ea_layer", None)
    missing = [name for name in _NAMES if not hasattr(layer, name)]
    if layer is None or missing:
        found = (
            f"{type(model).__name__} without ea_layer" if layer is None else f"no {', '.join(missing)} on it"
        )
        raise UnsupportedHostError(
            f"expected an EaModel whose ea_layer drafts a dynamic tree ({REQUIRES} or later), found {found}. "
            "Pass the object that EaModel.from_pretrained returns, of EAGLE-2 or EAGLE-3."
        )
    function = type(layer).topK_genrate
    require_parameters(function, "self", "hidden_states", "input_ids", "head", "logits_processor")
    tested = _TESTED.get(type(layer).__module__)
    if tested not in (None, found := fingerprint(function)):
        warnings.warn(
            f"expected {function.__qualname__} as tested ({tested}), found another text of it ({found}); its "
            "parameters are the same. Pass verify=True to compare the trees.",
            stacklevel=3,
        )
    return layer


def _checked(max_depth: int | None, min_probability: float, level_rule: LevelRule) -> Options:
    if max_depth is not None and max_depth < 1:
        raise PolicyError(
            f"expected max_depth of at least 1 level, or None for the host's, found {max_depth!r}."
        )
    if not 0 <= min_probability < 1:
        raise PolicyError(f"expected min_probability from 0 to below 1, found {min_probability!r}.")
    if level_rule not in get_args(LevelRule):
        raise PolicyError(f"expected level_rule to be one of {get_args(LevelRule)}, found {level_rule!r}.")
    return Options(max_depth=max_depth, min_probability=min_probability, level_rule=level_rule)


@torch.no_grad()
def _compare(layer: Any, head: Any) -> None:
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
