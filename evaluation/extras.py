"""Imports of what only the evaluation needs, with a sentence instead of a stack trace where it is missing."""

from __future__ import annotations

import importlib
from typing import Any

from svip_adapters.errors import HostVersionError

__all__ = ["import_extra"]


def import_extra(module: str) -> Any:
    """Import a module of the ``eval`` extra.

    Raises:
        HostVersionError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # installed, but broken in itself: the real cause must be seen
        raise HostVersionError(
            f"expected the package {error.name.split('.')[0]}, found none installed; install what the "
            "evaluation needs with: pip install 'svip-adapters[eval]'"
        ) from None
