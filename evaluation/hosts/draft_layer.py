"""What trained draft layers share: the target's embedding, and one file of tensors of their own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from .draft_files import read_tensors, save_tensors, wrong_file

__all__ = ["DraftLayer", "ReducedHead"]


class DraftLayer(nn.Module):
    """One layer on top of a target, a LlamaForCausalLM, whose embedding it shares.

    Attributes:
        kind: what its file's header calls it. weights: the file that is shipped.
    """

    kind: ClassVar[str]
    weights: ClassVar[Path]

    def __init__(self, target: Any) -> None:
        super().__init__()
        self.config = copy.deepcopy(target.config)
        self.config.num_hidden_layers = 1
        self.embed_tokens = target.get_input_embeddings()
        self.rotary = type(target.model.rotary_emb)(self.config)

    @classmethod
    def trained(cls, target: Any, path: Path | None = None) -> Self:
        """The trained layer for ``target``, on its dtype and device.

        Raises:
            ModelError: the file is missing, of another format or shape, or for another target.
        """
        layer = cls(target)
        layer.load(path or cls.weights, target)
        for name, own in layer.named_children():  # not the embedding, nor float32 frequencies
            if name not in ("embed_tokens", "rotary"):
                own.to(target.device, target.dtype).requires_grad_(False)
        return layer.to(target.device).eval()

    def own_state(self) -> dict[str, Tensor]:
        """The layer's own tensors; the embedding is the target's."""
        return {name: t for name, t in self.state_dict().items() if not name.startswith("embed_tokens.")}

    def load(self, path: Path, target: Any) -> None:
        """Take the tensors of a file that ``save`` wrote; raises as ``trained`` does."""
        tensors, _ = read_tensors(path, target, kind=self.kind)
        self.resize(tensors)
        shapes = {name: tuple(t.shape) for name, t in self.own_state().items()}
        if shapes != (found := {name: tuple(t.shape) for name, t in tensors.items()}):
            raise wrong_file(path, str(shapes), str(found))
        self.load_state_dict(tensors, strict=False)

    def resize(self, tensors: Mapping[str, Tensor]) -> None:
        """Make room for what depends on the file."""

    def save(self, path: Path, target_sha256: str, **notes: str) -> None:
        """Write the layer's own tensors in bf16; ``notes`` go to the header."""
        save_tensors(path, self.own_state(), kind=self.kind, target_sha256=target_sha256, **notes)


class ReducedHead(nn.Module):
    """Logits over the full vocabulary of which only some tokens can be drawn; the rest are -inf.

    Args:
        weight: (R, H), one row a token of the reduced vocabulary.
        vocab_ids: (R,), their ids in the full vocabulary.
        vocab_size: V.
    """

    vocab_ids: Tensor

    def __init__(self, weight: Tensor, vocab_ids: Tensor, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("vocab_ids", vocab_ids.long())
        self.vocab_size = vocab_size

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V)."""
        logits = nn.functional.linear(hidden, self.weight)
        full = logits.new_full((*logits.shape[:-1], self.vocab_size), float("-inf"))
        return full.index_copy_(-1, self.vocab_ids, logits)
