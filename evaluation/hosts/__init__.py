"""The hosts by name. None is imported before it is asked for: each needs other libraries."""

from __future__ import annotations

import importlib

from ..errors import BenchError, did_you_mean
from .base import Generation, Host

__all__ = ["HOSTS", "Generation", "Host", "load_host"]

HOSTS = {"transformers": ".transformers:TransformersHost"}


def load_host(name: str, *, dtype: str, device: str) -> Host:
    """Load a host and its models.

    Args:
        name: a key of ``HOSTS``.
        dtype: ``bfloat16`` or ``float32``.
        device: ``cpu`` or ``cuda``.

    Raises:
        BenchError: no such host.
        SvipAdaptersError: a library or a model it needs is missing.
    """
    if name not in HOSTS:
        raise BenchError(
            f"unknown host {name!r}{did_you_mean(name, list(HOSTS))}; expected one of: {', '.join(HOSTS)}."
        )
    module, cls = HOSTS[name].split(":")
    host: Host = getattr(importlib.import_module(module, __package__), cls).load(dtype=dtype, device=device)
    return host
