"""Counts a generation from outside: forward hooks on target and draft, the same for every policy.

A hook only notes shapes and keeps a reference to the input, about a microsecond a forward; the sums
are made after the clock has stopped. Nothing here trusts what a patch says about itself.

How a forward of the target reads as a round: with P prompt tokens, forward i has c_i tokens in its
cache and gets len_i new ones. Forward 0 gets the prompt and d_0 drafted tokens; later ones get the
last token and d_i drafted tokens. The cache is cut back to what was accepted, less the newest token,
so a round gained c_(i+1) - c_i tokens, counting c_0 as P - 1; the last round gained the rest.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from .errors import BenchError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Meter"]


class Meter:
    """Context manager around one ``generate`` call of one sequence.

    Args:
        target: the model that verifies.
        draft: the model that drafts.
    """

    def __init__(self, target: nn.Module, draft: nn.Module) -> None:
        self._models = target, draft
        self._handles: list[Any] = []
        self._calls: list[tuple[int, Tensor]] = []
        self.draft_steps = 0

    def __enter__(self) -> Meter:
        target, draft = self._models
        self._handles = [
            target.register_forward_pre_hook(self._on_target, with_kwargs=True),
            draft.register_forward_pre_hook(self._on_draft),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _on_target(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        cache = kwargs.get("cache", kwargs.get("past_key_values"))  # transformers 5.x and 4.57
        self._calls.append((0 if cache is None else int(cache.get_seq_length()), ids))

    def _on_draft(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        self.draft_steps += 1

    @property
    def target_forwards(self) -> int:
        """Forwards of the target so far, the one over the prompt included."""
        return len(self._calls)

    def rounds(self, prompt_length: int, ids: list[int]) -> tuple[list[int], list[int], int]:
        """What the forwards say about a finished generation.

        Args:
            prompt_length: tokens of the prompt, at least 1.
            ids: the new tokens.

        Returns:
            Tokens gained in each round, tokens drafted in each round, and how many of the gained tokens
            were drafted (see ``Generation.accepted``).

        Raises:
            BenchError: the forwards do not add up to ``ids``; the host does something this meter cannot read.
        """
        starts = [prompt_length - 1] + [cached for cached, _ in self._calls[1:]]
        ends = [*starts[1:], prompt_length - 1 + len(ids)]
        gained = [end - start for start, end in zip(starts, ends, strict=True)]
        offset = [prompt_length] + [1] * (len(self._calls) - 1)
        drafts = [call[1][0, n:].tolist() for call, n in zip(self._calls, offset, strict=True)]
        accepted = 0
        for start, n, draft in zip(starts, gained, drafts, strict=True):
            new = ids[start - prompt_length + 1 :][:n]
            matched = next(
                (i for i, (a, b) in enumerate(zip(new, draft, strict=False)) if a != b), min(n, len(draft))
            )
            accepted += matched
            if not (n == matched + 1 or (n == matched > 0 and start + n == ends[-1])):
                raise BenchError(
                    f"a round that drafted {len(draft)} tokens should gain the accepted ones and one more, "
                    f"found {n} gained with {matched} accepted; this version of the host cannot be counted "
                    "from its forwards: use one that svip-adapters was tested on."
                )
        return gained, [len(draft) for draft in drafts], accepted
