"""Decide when a speculative-decoding drafter should stop.

Names are imported when they are first used, so that ``import svip_adapters`` costs nothing and brings in
neither torch nor a host.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svip_adapters.adapters.eagle import patch_eagle
    from svip_adapters.adapters.glide import patch_glide
    from svip_adapters.adapters.transformers import patch_transformers
    from svip_adapters.adapters.vllm import patch_vllm
    from svip_adapters.errors import (
        HostVersionError,
        PatchError,
        PolicyError,
        SvipAdaptersError,
        UnsupportedHostError,
    )
    from svip_adapters.patching import Patch, PatchStats
    from svip_adapters.policies import (
        SVIP,
        AdaEDL,
        AllOf,
        AnyOf,
        Bandit,
        Confidence,
        Cumulative,
        FittedSVIP,
        Fixed,
        Heuristic,
        RateOptimal,
        Table,
        parse_policy,
    )
    from svip_adapters.policy import DraftStep, LengthPolicy, Outcome, RoundContext

    __version__: str

__all__ = [
    "SVIP",
    "AdaEDL",
    "AllOf",
    "AnyOf",
    "Bandit",
    "Confidence",
    "Cumulative",
    "DraftStep",
    "FittedSVIP",
    "Fixed",
    "Heuristic",
    "HostVersionError",
    "LengthPolicy",
    "Outcome",
    "Patch",
    "PatchError",
    "PatchStats",
    "PolicyError",
    "RateOptimal",
    "RoundContext",
    "SvipAdaptersError",
    "Table",
    "UnsupportedHostError",
    "__version__",
    "parse_policy",
    "patch_eagle",
    "patch_glide",
    "patch_transformers",
    "patch_vllm",
]

_MODULES = {
    "adapters.eagle": ("patch_eagle",),
    "adapters.glide": ("patch_glide",),
    "adapters.transformers": ("patch_transformers",),
    "adapters.vllm": ("patch_vllm",),
    "errors": ("HostVersionError", "PatchError", "PolicyError", "SvipAdaptersError", "UnsupportedHostError"),
    "patching": ("Patch", "PatchStats"),
    "policies": (
        "SVIP",
        "AdaEDL",
        "AllOf",
        "AnyOf",
        "Bandit",
        "Confidence",
        "Cumulative",
        "FittedSVIP",
        "Fixed",
        "Heuristic",
        "RateOptimal",
        "Table",
        "parse_policy",
    ),
    "policy": ("DraftStep", "LengthPolicy", "Outcome", "RoundContext"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("svip-adapters")
    elif name in _HOMES:
        value = getattr(importlib.import_module(f"svip_adapters.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'svip_adapters' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
