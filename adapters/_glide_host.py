"""Is this GliDe as the adapter knows it, and does its target rotate positions as it should?"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from svip_adapters.errors import PolicyError, UnsupportedHostError
from svip_adapters.patching import require_parameters, require_unpatched, warn_if_changed

__all__ = ["METHODS", "SLACK", "Functions", "draft_limit", "require_host", "warn_of_rope"]

SLACK = 32  # upstream's rotary table ends this many positions after the target's keys

METHODS = ("medusa_forward", "medusa_generate", "medusa_generate_stream")

_MODULE = "glide.glideModel"
# At the pin. Another text works while the parameters are the same.
_TESTED = {
    "medusa_forward": "cad18e302af6",
    "medusa_generate": "155d296ecb01",
    "greedy_search": "610f329cd01d",
}
_SEAM = {
    "greedy_search": ("self", "input_ids"),
    "generate_candidates_joint_llama": ("tree_candidates", "retrieve_indices"),
    "update_inference_inputs_joint_llama": ("input_ids", "candidates", "best_candidate", "accept_length"),
}


def draft_limit(block_size: int | None, max_length: int | None) -> int:
    """Most tokens to draft in a round: what the user chose, or what the drafter was trained for.

    Raises:
        PolicyError: out of range.
    """
    # Upstream reads None as 5.
    limit = min(block_size or 5, SLACK) if max_length is None else max_length
    if not (isinstance(limit, int) and 1 <= limit <= SLACK):
        raise PolicyError(
            f"expected max_length from 1 to {SLACK}, found {limit!r}: GliDe has positions for no "
            "more. None takes config.block_size, the length it was trained for."
        )
    return limit


@dataclass(frozen=True)
class Functions:
    """The three functions of the host's module that a round goes through."""

    greedy_search: Callable[..., Any]
    generate_candidates_joint_llama: Callable[..., Any]
    update_inference_inputs_joint_llama: Callable[..., Any]


def require_host(model: Any, requires: str) -> Functions:
    """What the adapter stands in for, if the model has everything that it uses.

    Raises:
        UnsupportedHostError: it has not. PatchError: the model is patched already.
    """
    require_unpatched(model)
    missing = [name for name in METHODS[:2] if not hasattr(type(model), name)]
    known: dict[str, Any] = {}
    if not missing:
        known = type(model).medusa_forward.__globals__ | type(model).medusa_generate.__globals__
        missing = [name for name in _SEAM if name not in known]
    if missing or not hasattr(getattr(model, "config", None), "block_size"):
        raise UnsupportedHostError(
            f"expected a GliDe drafter ({requires}), found {type(model).__name__} without "
            f"{', '.join(missing) or 'config.block_size'}. Pass the small model, not the target."
        )
    require_parameters(type(model).medusa_forward, "self", "large_model", "input_ids")
    require_parameters(type(model).medusa_generate, "self", "input_ids", "large_model")
    for name, parameters in _SEAM.items():
        require_parameters(known[name], *parameters)
    for name in METHODS:
        if name in vars(model):
            raise UnsupportedHostError(
                f"expected {type(model).__name__}'s own {name}, found {vars(model)[name]!r} in its place: it "
                "would not draft under the policy. Undo that first; it can be put back on top of the patch."
            )
    if type(model).__module__ == _MODULE:
        for function in (type(model).medusa_forward, type(model).medusa_generate, known["greedy_search"]):
            tested = _TESTED[function.__name__]
            warn_if_changed(function, tested, "Compare outputs with and without the patch.")
    return Functions(**{name: known[name] for name in _SEAM})


def warn_of_rope(model: Any, target: Any) -> None:
    """Warn if the target, or the drafter's attention to it, ignores the target's ``rope_theta``.

    Upstream's ``modeling_llama_kv`` always takes 10000: right for Vicuna, wrong for Llama-3, Qwen, SmolLM2.
    """
    theta = getattr(target.config, "rope_theta", None)
    scaling = getattr(target.config, "rope_scaling", None) or {}
    if theta is None or scaling.get("rope_type", scaling.get("type", "default")) != "default":
        return
    parts = {
        f"{whose}.{name}": part.inv_freq
        for whose, owner, within in (("target", target, "self_attn"), ("drafter", model, "cross_attn"))
        for name, part in owner.named_modules()
        if name.endswith("rotary_emb") and within in name
    }
    wrong = [name for name, found in parts.items() if not _rotates_by(found, theta)]
    if wrong:
        warnings.warn(
            f"expected rotary embeddings with rope_theta = {theta:g}, as the target's configuration says, "
            f"found another base in {len(wrong)} of {len(parts)}, such as {wrong[0]}: GliDe's code always "
            "takes 10000, so the target does not compute what its weights were trained for. Replace each "
            f"module by type(module)(module.dim, base={theta:g}, device=module.inv_freq.device) before you "
            "generate (a drafter trained on the wrong ones has to be trained again). Nothing was changed.",
            stacklevel=3,
        )


def _rotates_by(inv_freq: Tensor, theta: float) -> bool:
    """By a middle frequency, and not too closely: casting a model to half precision rounds them."""
    half = len(inv_freq) // 2
    wanted = float(theta) ** (-half / len(inv_freq))
    return bool(abs(float(inv_freq[half]) / wanted - 1) < 0.05)
