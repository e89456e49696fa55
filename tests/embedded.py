"""The embedded hosts with the authors' seams, tiny: what a test needs to run on each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import eagles
import glides

from svip_adapters import patch_eagle, patch_glide
from svip_adapters.evaluation.hosts.glide_tree import CAPE


@dataclass(frozen=True)
class Embedded:
    """``make()`` -> models, for ``generate(models, new)``; ``patched`` and ``target`` are parts of them."""

    make: Callable[[], Any]
    generate: Callable[..., list[int]]
    patch: Callable[..., Any]
    patched: Callable[[Any], Any]
    target: Callable[[Any], Any]
    prompt: Any
    new: int


def _glide(**options: Any) -> Embedded:
    return Embedded(
        make=glides.make,
        generate=lambda pair, new=glides.NEW: glides.generate(pair, new, **options),
        patch=lambda pair, *arguments, **kwargs: patch_glide(pair[0], *arguments, **kwargs),
        patched=lambda pair: pair[0],
        target=lambda pair: pair[1],
        prompt=glides.PROMPT,
        new=glides.NEW,
    )


EMBEDDED = {
    "eagle2": Embedded(
        make=eagles.make,
        generate=eagles.generate,
        patch=patch_eagle,
        patched=lambda model: model,
        target=lambda model: model.base_model,
        prompt=eagles.PROMPT,
        new=eagles.NEW,
    ),
    "glide": _glide(),
    "glide_cape": _glide(prob_to_top=CAPE),
}
