"""Where converted models live on disk, and how they get there without ever being half there."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from svip_adapters.errors import SvipAdaptersError

from ..extras import import_extra

__all__ = ["ModelError", "build_once", "cache_dir", "check_sha256"]

LEFTOVER_SECONDS = 3600.0


class ModelError(SvipAdaptersError, RuntimeError):
    """A model's files are missing, are not the ones expected, or cannot be written."""


def cache_dir() -> Path:
    """``$SVIP_ADAPTERS_CACHE``, else ``svip-adapters`` in the user's cache directory (XDG)."""
    if own := os.environ.get("SVIP_ADAPTERS_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "svip-adapters"


def check_sha256(path: Path, expected: str, remedy: str) -> None:
    """Compare a file's SHA-256 with the one expected.

    Raises:
        ModelError: it differs; the message ends in ``remedy``.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelError(f"{path.name}: expected SHA-256 {expected}, found {found} in {path}; {remedy}")


def build_once(directory: Path, build: Callable[[Path], None]) -> Path:
    """Return ``directory``, made by ``build(scratch)`` where it is not there yet.

    The scratch directory is renamed when it is complete, so a killed process leaves no half-made
    directory behind, and of two processes at once the first to finish wins.

    Raises:
        ModelError: the place cannot be written, or is full.
    """
    if directory.is_dir():
        return directory
    safetensors = import_extra("safetensors")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(directory)
        scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            scratch.chmod(0o755)  # mkdtemp's 0700 would lock a cache that several users share
            build(scratch)
            _rename(scratch, directory)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelError(
            f"expected to write a converted model (about 0.6 GB) to {directory}, found: {error}. Free some "
            "space there, or name another place in the environment variable SVIP_ADAPTERS_CACHE."
        ) from error
    return directory


def _rename(scratch: Path, directory: Path) -> None:
    try:
        scratch.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise


def _remove_leftovers(directory: Path) -> None:
    """Delete what killed processes left: half a gigabyte each. Younger ones may still be at work."""
    for old in directory.parent.glob(f".{directory.name}.*"):
        if time.time() - old.stat().st_mtime > LEFTOVER_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
