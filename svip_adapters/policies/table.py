"""A draft length looked up by load: what serving engines do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svip_adapters.errors import PolicyError
from svip_adapters.policies._arguments import never, require_integer
from svip_adapters.policy import DraftStep, LengthPolicy, RoundContext

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Table"]

_KEYS = ("batch_size", "context_length")


@dataclass(frozen=True)
class Table(LengthPolicy):
    """Draft length by batch size or context length: the entry with the largest key not above it counts.

    ``Table({1: 5, 8: 3, 32: 0})`` drafts 5 for 1..7 sequences, 3 for 8..31 and nothing from 32 on;
    on a command line ``table:1=5,8=3,32=0,by=batch_size``.

    Source: vLLM's ``num_speculative_tokens_per_batch_size`` and TensorRT-LLM's ``draft_len_schedule``
    (by batch size), vLLM PR 54801 (by sequence length). Keys there mark the ends of ranges in part; here
    always the beginning. No default.

    Args:
        lengths: {first batch size or context length: tokens to draft}; the smallest key is 0 or 1.
        by: "batch_size" or "context_length" (tokens so far, prompt included).

    Raises:
        PolicyError: a table that is empty, leaves small values open, or holds anything but whole numbers.
    """

    lengths: Mapping[int, int] = field(hash=False)
    by: str = "batch_size"
    max_length: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.lengths, Mapping) or not self.lengths:
            raise PolicyError(
                f"Table expects a mapping such as {{1: 5, 8: 3, 32: 0}}, found {self.lengths!r}. "
                "On a command line write table:1=5,8=3,32=0."
            )
        if self.by not in _KEYS:
            raise PolicyError(
                f"Table expects by to be {' or '.join(_KEYS)}, found {self.by!r}. Pass one of the two."
            )
        for key, length in self.lengths.items():
            require_integer("Table", "each key", key, low=0)
            require_integer("Table", f"the length for {key}", length, low=0)
        if min(self.lengths) > 1:
            raise PolicyError(
                f"Table expects its smallest key to be 0 or 1, found {min(self.lengths)}: "
                f"add an entry 1=n that says how much to draft below {self.by} {min(self.lengths)}."
            )
        object.__setattr__(self, "lengths", dict(sorted(self.lengths.items())))
        object.__setattr__(self, "max_length", max(self.lengths.values()))

    def plan(self, context: RoundContext) -> int:
        value: int = getattr(context, self.by)
        return self.lengths[max((key for key in self.lengths if key <= value), default=min(self.lengths))]

    def stop(self, step: DraftStep) -> Tensor:
        return never(step)
