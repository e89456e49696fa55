"""GliDe, with and without CaPE, as its authors ship it (NonvolatileMemory/GliDe_with_a_CaPE_ICML_24).

Seam: the drafting call inside a round, ``greedy_search``, which is a name in the host's module. The patched
model gets copies of its own methods that see another function under that name; neither the class nor the
module is touched, so other models in the process draft as before. CaPE reads the draft's scores after it and
needs nothing: the length is the policy's, the width is CaPE's table (``prob_to_top``).

Not reached: a loop of one's own around ``medusa_forward`` drafts under the policy, but what was accepted is
not seen. Names are copied when the patch is made: a function replaced in the host's module later is not used.
Sampling, beam search and ``expand_cape`` raise: the first fails upstream, the others do not draft through
the seam. The host's limit of new tokens is not known at the seam, so a policy is told that there is room.
"""

from __future__ import annotations

from typing import Any

from svip_adapters.patching import Patch
from svip_adapters.policy import LengthPolicy

from ._bridge import choose_policy
from ._glide_host import draft_limit, require_host
from ._glide_round import Bridge

__all__ = ["REQUIRES", "patch_glide"]

# A checkout on the path: the repository has no package that could be installed.
REQUIRES = "glide @ git+https://github.com/NonvolatileMemory/GliDe_with_a_CaPE_ICML_24@edf4c9a"


def patch_glide(
    model: Any,
    threshold: float | None = None,
    *,
    policy: LengthPolicy | None = None,
    max_length: int | None = None,
    fix_padding: bool = True,
) -> Patch:
    """Let a length policy decide how far GliDe drafts.

    Afterwards ``model.medusa_generate(input_ids, large_model, ...)`` drafts under it, with CaPE too. At the
    first round with a target whose rotary embedding is not the one of its configuration, a warning says so.

    Args:
        model: the drafter, a ``smallLlamaForCausalLM``.
        threshold: short for ``policy=SVIP(threshold=...)``; with neither, ``RateOptimal()``.
        policy: any ``LengthPolicy``. One token is always drafted: the host cannot verify none.
        max_length: most tokens drafted in a round, up to 32, the host's limit. None means
            ``config.block_size``, the furthest that the drafter was trained to look.
        fix_padding: CaPE fills up short paths with token 0 and accepts it where the target would choose
            token 0 itself, which is then not what the target alone would say. True keeps it from doing so.

    Returns:
        A ``Patch``: ``.stats`` counts nodes sent to the target as drafted; ``.revert()`` restores.

    Raises:
        UnsupportedHostError: no GliDe drafter, or one whose methods take other parameters.
        PolicyError: threshold and policy both given, or ``max_length`` out of range.
        PatchError: the model is patched already.
    """
    host = require_host(model, REQUIRES)
    limit = draft_limit(model.config.block_size, max_length)
    patch = Patch(model, choose_policy(threshold, policy))
    bridge = Bridge(model, host, patch, limit=limit, fix_padding=fix_padding)
    for name, method in bridge.methods().items():
        patch.set(model, name, method)
    return patch
