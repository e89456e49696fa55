"""The trained chain drafter: a small Llama that borrows its target's embedding and first layers.

File format: safetensors in bf16, with a header of ``chain_draft`` (the format's version), ``target_sha256``
and ``num_layers``, and these tensors:

- ``layers.{i}.<Llama names>``: the trained layers. A layer that is absent is the target's own layer i.
- ``norm.weight`` (H,): the final norm.
- ``vocab_ids`` (R,) int32: the tokens the drafter can draw, its reduced vocabulary.
- ``projection`` (H, H): the head is ``logits = E_R @ projection @ norm(h)``, E_R the target's own
  embedding rows of ``vocab_ids``. It is folded into one (R, H) matrix on loading.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..extras import import_extra
from .draft_files import read_tensors, save_tensors, wrong_file
from .draft_layer import ReducedHead

__all__ = ["WEIGHTS", "ReducedHead", "export_draft", "load_draft", "read_draft", "save_draft"]

KIND = "chain_draft"
WEIGHTS = Path(__file__).with_name("weights") / "chain.safetensors"
OTHERS = {"norm.weight", "projection", "vocab_ids"}


def save_draft(
    path: Path, tensors: Mapping[str, Tensor], *, num_layers: int, target_sha256: str, **notes: str
) -> None:
    """Write a drafter in the format above; ``notes`` go to the header as well.

    Args:
        tensors: the keys of the format, of any floating dtype; stored in bf16, ``vocab_ids`` in int32.
        num_layers: layers of the drafter, borrowed ones included.
        target_sha256: ``target.config.gguf_sha256``.
    """
    header = {**notes, "num_layers": str(num_layers)}
    save_tensors(path, tensors, kind=KIND, target_sha256=target_sha256, **header)


def load_draft(target: Any, path: Path = WEIGHTS) -> Any:
    """The drafter of ``target``, a stock LlamaForCausalLM with a ``ReducedHead``, on its dtype and device.

    The embedding, and the layers that ``path`` does not hold, are the target's own tensors, not copies.

    Args:
        target: a LlamaForCausalLM made by ``load_target``.
        path: a file in the format above.

    Raises:
        ModelError: the file is missing, of another format, for another target, or incomplete.
    """
    transformers = import_extra("transformers")
    tensors, num_layers = read_draft(path, target)
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = num_layers
    config.tie_word_embeddings = False
    del config.gguf_sha256  # says which file the target came from; not true of the drafter
    with torch.device("meta"):  # no random initialisation: no time, and no draw from the user's generator
        draft = transformers.LlamaForCausalLM(config)
    body = target.model
    draft.model.load_state_dict(_state(draft.model, tensors, body, path), assign=True)
    draft.model.rotary_emb = type(body.rotary_emb)(config)
    rows = body.embed_tokens.weight.detach()[tensors["vocab_ids"].long().to(target.device)]
    draft.lm_head = ReducedHead(_fold(rows, tensors, target), tensors["vocab_ids"], config.vocab_size)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    ids = {name: getattr(target.generation_config, name) for name in names}
    draft.generation_config = transformers.GenerationConfig(**ids)
    return draft.to(target.device).requires_grad_(False).eval()


def export_draft(directory: Path, target: Any, path: Path = WEIGHTS) -> None:
    """Write the drafter as a plain checkpoint folder, for engines that load nothing else (vLLM).

    Its head is a full untied (V, H) matrix: tokens outside the reduced vocabulary, which training did
    not see, get the logits that the same projection gives their embeddings, not -inf.
    """
    draft = load_draft(target, path)
    tensors, _ = read_draft(path, target)
    rows = target.model.embed_tokens.weight.detach()
    draft.lm_head = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    draft.lm_head.weight = nn.Parameter(_fold(rows, tensors, target), requires_grad=False)
    draft.save_pretrained(directory)


def _fold(rows: Tensor, tensors: Mapping[str, Tensor], target: Any) -> Tensor:
    """(R, H) embedding rows times the projection, in the target's dtype; multiplied in float32."""
    return (rows.float() @ tensors["projection"].to(target.device).float()).to(target.dtype)


def read_draft(path: Path, target: Any) -> tuple[dict[str, Tensor], int]:
    """Tensors of the file and the number of layers, checked against the target; raises as ``load_draft``."""
    tensors, header = read_tensors(path, target, kind=KIND)
    if missing := OTHERS - tensors.keys():
        raise wrong_file(path, ", ".join(sorted(missing)), "only " + ", ".join(sorted(tensors)))
    ids, size = tensors["vocab_ids"], target.config.vocab_size
    if len(set(ids.tolist())) != ids.numel() or not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise wrong_file(
            path, f"different vocab_ids below {size}", f"{ids.numel()} from {ids.min()} to {ids.max()}"
        )
    return tensors, int(header["num_layers"])


def _state(model: nn.Module, tensors: Mapping[str, Tensor], body: nn.Module, path: Path) -> dict[str, Tensor]:
    """The drafter's state: from the file where it has the layer, else the target's own tensors."""
    borrowed, state = body.state_dict(), {}
    like: Tensor = borrowed["embed_tokens.weight"]
    trained = {".".join(name.split(".")[:2]) + "." for name in tensors if name.startswith("layers.")}
    for name, empty in model.state_dict().items():
        own = name in OTHERS or name.startswith(tuple(trained))
        tensor = tensors.get(name) if own else borrowed.get(name)
        if tensor is None or tensor.shape != empty.shape:
            found = "none" if tensor is None else str(tuple(tensor.shape))
            raise wrong_file(path, f"{name} {tuple(empty.shape)}", found)
        state[name] = tensor.to(like.device, like.dtype) if own else tensor.detach()
    if unknown := tensors.keys() - state.keys() - OTHERS:
        raise wrong_file(path, "only tensors of the format", ", ".join(sorted(unknown)))
    return state
