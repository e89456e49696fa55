"""EAGLE as its authors ship it (``EaModel``): 2 and 3 from SafeAILab/EAGLE, 1 from PyPI.

Seam: ``ea_layer.topK_genrate``, which drafts one tree and returns it as four tensors. It is replaced on the
instance; the draft layer, the target, verification and sampling stay the authors'. Its parameters have not
changed since EAGLE-2's first commit, and that is what is checked: PyPI and the repository both call their
distribution eagle-llm, so a version number says nothing.

Not reached: ``naivegenerate``, which drafts nothing. The host's limit of new tokens is not known at the
seam, so a policy is told that there is room for a whole tree. EAGLE-1 verifies a tree of fixed shape, so
there the policy cuts whole levels, and not in a sequence's first round.
"""

from __future__ import annotations

from typing import Any

from svip_adapters.errors import PolicyError
from svip_adapters.patching import Patch
from svip_adapters.policy import LengthPolicy

from ._bridge import choose_policy
from ._eagle1_layer import FixedTreeBridge
from ._eagle_host import compare_trees, has_fixed_tree, require_layer
from ._eagle_layer import Bridge, Options
from ._tree_steps import LevelRule

__all__ = ["REQUIRES", "patch_eagle"]

REQUIRES = "eagle-llm @ git+https://github.com/SafeAILab/EAGLE@cb7e084"


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
        model: an ``EaModel`` of EAGLE-1, EAGLE-2 or EAGLE-3.
        threshold: short for ``policy=SVIP(threshold=...)``; with neither, ``RateOptimal()``.
        policy: any ``LengthPolicy``; ``max_length`` and ``plan`` count levels. One level is always drafted:
            the host cannot verify a tree without nodes.
        max_depth: most levels; None means the host's, ``depth + 1``. A branch that stays certain may then go
            deeper than the host's, within the same budget of nodes.
        min_probability: nodes of a path that is no likelier than this are not sent to the target, nor
            drafted on, so ``total_tokens`` becomes a ceiling (see ``TreeShape``).
        level_rule: "branch", "best" or "mean" (see ``LevelRule``).
        verify: first draft a tree of random states with a policy that never stops and compare all four
            tensors with the host's own. Exact in float32 only. For EAGLE-1, this and the two options before
            ``level_rule`` are refused.

    Returns:
        A ``Patch``: ``.stats`` counts nodes sent to the target as drafted; ``.revert()`` restores.

    Raises:
        UnsupportedHostError: no ``EaModel``, one with other parameters, or ``verify`` found a difference.
        PolicyError: threshold and policy both given, or an option that makes no sense.
        PatchError: the model is patched already.
    """
    layer = require_layer(model, REQUIRES)
    options = Options(max_depth=max_depth, min_probability=min_probability, level_rule=level_rule)
    chosen = choose_policy(threshold, policy)
    if has_fixed_tree(layer):
        _refuse_for_fixed_trees(max_depth=max_depth, min_probability=min_probability, verify=verify)
        patch = Patch(model, chosen)
        fixed = FixedTreeBridge(model, patch, level_rule)
        patch.set(layer, "topK_genrate", fixed.draft)
        patch.set(layer, "reset_kv", fixed.reset_kv)
        patch.on_revert(fixed.restore)
        return patch
    if verify:
        compare_trees(layer, model.base_model.lm_head)
    patch = Patch(model, chosen)
    patch.set(layer, "topK_genrate", Bridge(layer, patch, options).draft)
    return patch


def _refuse_for_fixed_trees(**options: Any) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        raise PolicyError(
            f"expected no {', '.join(given)} for EAGLE-1, whose tree has a fixed shape. Leave that out, or "
            "use EAGLE-2 or EAGLE-3."
        )
