"""The files that trained drafters ship in: safetensors in bf16, with a header that says what and whose it is.

Header: the file's kind and format, as in ``{"chain_draft": "1"}``, and ``target_sha256``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..extras import import_extra
from .model_files import ModelError

__all__ = ["read_tensors", "save_tensors", "wrong_file"]

FORMAT = "1"


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, kind: str, target_sha256: str, **notes: str
) -> None:
    """Write floating tensors in bf16 and others in int32; ``notes`` go to the header as well."""
    stored = {
        name: tensor.detach().cpu().to(torch.bfloat16 if tensor.is_floating_point() else torch.int32)
        for name, tensor in tensors.items()
    }
    header = {**notes, "format": "pt", kind: FORMAT, "target_sha256": target_sha256}
    partial = path.with_name(path.name + ".partial")
    save = import_extra("safetensors.torch").save_file
    save({name: tensor.contiguous() for name, tensor in stored.items()}, partial, metadata=header)
    partial.replace(path)


def read_tensors(path: Path, target: Any, *, kind: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a file that ``save_tensors`` wrote for this target.

    Raises:
        ModelError: missing, of another kind or format, or for another target.
    """
    safetensors = import_extra("safetensors")
    if not path.is_file():
        raise wrong_file(path, "a drafter's weights", "no such file")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except safetensors.SafetensorError as error:
        raise wrong_file(path, "safetensors", str(error)) from error
    if header.get(kind) != FORMAT:
        raise wrong_file(path, f"a drafter of format {FORMAT}", repr(header.get(kind)))
    wanted, sha256 = header["target_sha256"], getattr(target.config, "gguf_sha256", None)
    if wanted != sha256:
        raise ModelError(
            f"expected the target with SHA-256 {wanted}, which {path.name} was trained for, found {sha256}; "
            "pass the model that load_target returns, or train a drafter for yours."
        )
    return tensors, header


def wrong_file(path: Path, expected: str, found: str) -> ModelError:
    """The error about a file that is not what it should be."""
    return ModelError(
        f"expected {expected} in {path}, found {found}; use the weights that came with this version of "
        "svip-adapters, or train a drafter (python -m svip_adapters.evaluation.train --help)."
    )
