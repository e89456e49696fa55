"""Hugging Face transformers: assisted generation, ``target.generate(..., assistant_model=draft)``.

Seams. ``draft.generate``, on the instance, gets one more stopping criterion, which asks the policy after
each draw; a forward hook on the draft keeps the raw logits for it, since criteria are shown processed
scores only. The candidate generator that the host makes for each sequence has its two public methods,
``get_candidates`` and ``update_candidate_strategy``, wrapped on the instance: they bound a round and
report what was accepted, in the last round too. To meet that generator,
``GenerationMixin._get_candidate_generator`` is wrapped while any patch is live, and
``GenerationConfig.get_generation_mode`` to refuse modes in which the host would ignore the draft. Models
that are not patched pass straight through both.

While a patched draft drafts, the host's own gate (0.4 by default), its re-fit of that gate and its
schedule of lengths are off; no ``generation_config`` stays changed after a round.

Works: greedy and sampling, encoder-decoder, early-exit self-speculation (patch the model itself), and
different tokenizers (lengths in ``stats`` then count the target's tokens) for rules that keep the token
they stop at.

Not reached: recipes given as ``custom_generate`` that draft by calling the draft's forward themselves. On
4.57, a first round without a draft, after a prompt that already meets a stopping criterion other than EOS,
ends generation with no new token: the host takes the empty draft for the end.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from svip_adapters.errors import UnsupportedHostError
from svip_adapters.patching import Patch, require_parameters, require_version
from svip_adapters.policy import LengthPolicy

from ._assisted import Bridge, Sequence
from ._bridge import SharedSwaps, choose_policy

__all__ = ["REQUIRES", "patch_transformers"]

REQUIRES = "transformers>=4.57,<6"

_BRIDGE = "_svip_bridge"
_swaps = SharedSwaps()


def patch_transformers(
    assistant_model: Any, threshold: float | None = None, *, policy: LengthPolicy | None = None
) -> Patch:
    """Let a length policy decide how far a draft model drafts in Hugging Face assisted generation.

    Afterwards ``target.generate(..., assistant_model=assistant_model)`` drafts under it, for any target.

    Args:
        assistant_model: the draft, a ``PreTrainedModel`` that can generate.
        threshold: short for ``policy=SVIP(threshold=...)``; with neither, ``RateOptimal()``.
        policy: any ``LengthPolicy``.

    Returns:
        A ``Patch``: ``.stats`` counts, ``.revert()`` restores, ``with`` reverts at the end of the block.

    Raises:
        HostVersionError: transformers is missing or outside ``REQUIRES``.
        UnsupportedHostError: not a ``PreTrainedModel`` that can generate, or the host's functions changed.
        PolicyError: threshold and policy both given, or one that makes no sense.
        PatchError: the model is patched already.
    """
    require_version(REQUIRES)
    from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

    _require_host()
    if not (isinstance(assistant_model, PreTrainedModel) and isinstance(assistant_model, GenerationMixin)):
        raise UnsupportedHostError(
            "expected a transformers PreTrainedModel that can generate, found "
            f"{type(assistant_model).__name__}. Pass the draft with its language-model head (of a compiled "
            "or wrapped model, the model inside)."
        )
    chosen = choose_policy(threshold, policy)
    patch = Patch(assistant_model, chosen)
    bridge = Bridge(assistant_model, patch)
    patch.set(assistant_model, _BRIDGE, bridge)
    patch.set(assistant_model, "generate", bridge.generate)
    patch.on_revert(assistant_model.register_forward_hook(bridge.keep_logits).remove)
    _swaps.acquire(
        (GenerationMixin, "_get_candidate_generator", _adopting),
        (GenerationConfig, "get_generation_mode", _refusing),
    )
    patch.on_revert(_swaps.release)
    return patch


def _require_host() -> None:
    from transformers import GenerationConfig, GenerationMixin
    from transformers.generation.candidate_generator import AssistedCandidateGenerator as Generator

    names = (
        "generation_config",
        "input_ids",
        "inputs_tensor",
        "logits_processor",
        "model_kwargs",
        "assistant_model",
    )
    require_parameters(GenerationMixin._get_candidate_generator, "self", *names)
    require_parameters(GenerationConfig.get_generation_mode, "self", "assistant_model")
    require_parameters(Generator.get_candidates, "self", "input_ids")
    require_parameters(Generator.update_candidate_strategy, "self", "input_ids", "scores", "num_matches")


def _adopting(original: Callable[..., Any]) -> Callable[..., Any]:
    from transformers.generation.candidate_generator import AssistedCandidateGenerator

    signature = inspect.signature(original)

    @functools.wraps(original)
    def _get_candidate_generator(*args: Any, **kwargs: Any) -> Any:
        generator = original(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        assistant_model = given.get("assistant_model")
        draft = generator.assistant_model if isinstance(generator, AssistedCandidateGenerator) else None
        if getattr(assistant_model, _BRIDGE, None) and draft is not assistant_model:
            raise UnsupportedHostError(
                f"expected the patched {type(assistant_model).__name__} to draft token by token, found that "
                f"these arguments make transformers draft with {type(generator).__name__} instead. Leave "
                "out what selects it (such as prompt_lookup_num_tokens or assistant_early_exit), or revert "
                "the patch."
            )
        bridge: Bridge | None = getattr(draft, _BRIDGE, None)
        if bridge is not None:
            _refuse_taking_back(bridge.policy, generator)
            _refuse_batches(given["input_ids"])
            Sequence(bridge, generator, given["generation_config"], given["input_ids"])
        return generator

    return _get_candidate_generator


def _refuse_taking_back(policy: LengthPolicy, generator: Any) -> None:
    if policy.stops_before and hasattr(generator, "assistant_tokenizer"):
        raise UnsupportedHostError(
            f"expected a rule that keeps the token it stops at, found {policy!r} with stops_before = True: "
            "between different tokenizers a drafted token cannot be taken back. Use stops_before=False."
        )


def _refuse_batches(input_ids: Any) -> None:
    if input_ids.shape[0] > 1:
        raise UnsupportedHostError(
            f"expected one sequence, found a batch of {input_ids.shape[0]}: transformers verifies one at a "
            "time. Call generate once for each prompt."
        )


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_generation_mode(self: Any, assistant_model: Any = None) -> Any:
        mode = original(self, assistant_model)
        if getattr(assistant_model, _BRIDGE, None) and mode != "assisted_generation":
            raise UnsupportedHostError(
                "expected greedy search or sampling with a patched assistant, found the mode "
                f"{mode.value!r}, in which transformers ignores the assistant. Set num_beams=1 (and no "
                "penalty_alpha, constraints or DoLa), or leave out assistant_model."
            )
        return mode

    return get_generation_mode
