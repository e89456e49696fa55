"""The hosts by name. None is imported before it is asked for: each needs other libraries."""

from __future__ import annotations

import importlib

from ..errors import BenchError, did_you_mean
from .base import Generation, Host

__all__ = ["HOSTS", "Generation", "Host", "load_host"]

HOSTS = {
    "eagle": ".eagle:EagleHost",
    "eagle2": ".eagle2:Eagle2Host",
    "glide": ".glide:GlideHost",
    "glide_cape": ".glide:GlideCapeHost",
    "transformers": ".transformers:TransformersHost",
}
WITH_WEIGHTS = ("eagle",)


def load_host(name: str, *, dtype: str, device: str, weights: dict[str, str] | None = None) -> Host:
    """Load a host and its models.

    Args:
        name: a key of ``HOSTS``.
        dtype: ``bfloat16`` or ``float32``.
        device: ``cpu`` or ``cuda``.
        weights: ``model_path`` and ``ea_model_path``, for a host that runs on weights of the user's own.

    Raises:
        BenchError: no such host, or one that wants weights and has none, or has its own and is given some.
        SvipAdaptersError: a library or a model it needs is missing.
    """
    if name not in HOSTS:
        raise BenchError(
            f"unknown host {name!r}{did_you_mean(name, list(HOSTS))}; expected one of: {', '.join(HOSTS)}."
        )
    module, cls = HOSTS[name].split(":")
    given = {key: value for key, value in (weights or {}).items() if value}
    wanted = ("model_path", "ea_model_path") if name in WITH_WEIGHTS else ()
    if set(given) != set(wanted):
        flags = ", ".join("--" + key.replace("_", "-") for key in wanted) or "no path to weights"
        raise BenchError(f"expected {flags} with --host {name}, found {', '.join(given.values()) or 'none'}.")
    loader = getattr(importlib.import_module(module, __package__), cls).load
    host: Host = loader(dtype=dtype, device=device, **given)
    return host
