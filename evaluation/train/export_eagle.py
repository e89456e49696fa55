"""The embedded EAGLE-2 in upstream's format: a folder for the target, one for the head."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..extras import import_extra
from ..hosts.eagle_layer import EagleLayer

__all__ = ["export_eagle"]


def export_eagle(target: Any, model_dir: Path, out: Path, path: Path | None = None) -> None:
    """Write ``out/base`` and ``out/head``.

    ``EaModel.from_pretrained(use_eagle3=False, base_model_path=..., ea_model_path=...)`` of SafeAILab/EAGLE,
    at cb7e084, then finds every key.

    Args:
        target: what ``load_target`` returns. model_dir: its folder, a single ``model.safetensors``.
        path: weights of the draft layer; None: those that are shipped.
    """
    base, head = out / "base", out / "head"
    for folder in (base, head):
        folder.mkdir(parents=True, exist_ok=True)
    for file in model_dir.iterdir():
        shutil.copyfile(file, base / file.name)
    # Upstream looks the embedding up in an index, which a target of one file does not have.
    names = import_extra("safetensors").safe_open(base / "model.safetensors", framework="pt").keys()
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
    (base / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))

    config = json.loads((model_dir / "config.json").read_text())
    for name in ("rope_parameters", "gguf_sha256"):
        config.pop(name, None)
    config |= {"num_hidden_layers": 1, "bias": False}
    (head / "config.json").write_text(json.dumps(config, indent=1))
    layer = EagleLayer.trained(target, path)
    state = {name: tensor.float().contiguous() for name, tensor in layer.own_state().items()}
    state["embed_tokens.weight"] = layer.embed_tokens.weight.detach().float().clone()
    import_extra("safetensors.torch").save_file(state, head / "model.safetensors")
