"""What rounds of every EAGLE have in common: accepted tokens are read in, a tree's fate is reported."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from svip_adapters.errors import UnsupportedHostError
from svip_adapters.patching import Patch
from svip_adapters.policy import Outcome

__all__ = ["RoundLedger", "read_accepted"]


class RoundLedger:
    """Keeps a drafted tree until the sequence that the host comes with next says how much was accepted."""

    def __init__(self, patch: Patch) -> None:
        self._policy, self._stats = patch.policy, patch.stats
        self._open: tuple[int, int, int, bool] | None = None

    def begin(self) -> None:
        """A sequence starts; a tree still open went unused."""
        self._open = None
        self._policy.begin()

    def settle(self, length: int) -> None:
        """The host is at ``length`` tokens: a round adds what it accepted, and one token of the target's."""
        if self._open is not None:
            before, nodes, depth, early = self._open
            outcome = Outcome(drafted=nodes, accepted=length - before - 1, depth=depth)
            self._stats.add_round(outcome, draft_steps=0, early_stop=early)
            self._policy.verified(outcome)
            self._open = None

    def drafted(self, length: int, *, nodes: int, depth: int, early: bool, forwards: int) -> None:
        """A tree was drafted at ``length`` tokens."""
        self._open = length, nodes, depth, early
        self._stats.draft_steps += forwards


def read_accepted(layer: Any, hidden_states: Tensor, input_ids: Tensor) -> tuple[Tensor, Any, int]:
    """Let the draft layer read what was accepted last, as every ``topK_genrate`` begins.

    Returns:
        The last feature (1, 1, H), keys and values, and the position of the first drafted token.

    Raises:
        UnsupportedHostError: more than one sequence.
    """
    if input_ids.shape[0] != 1:
        raise UnsupportedHostError(
            f"expected one sequence, found a batch of {input_ids.shape[0]}: EAGLE verifies one at a time. "
            "Call eagenerate once for each prompt."
        )
    layer.reset()
    ids = input_ids.to(hidden_states.device)[:, 1:]
    position, past = ids.shape[1], getattr(layer, "stable_kv", None)
    if past is not None:
        ids = ids[:, past[0][0].shape[2] :]
    hidden, past = layer(hidden_states, input_ids=ids, past_key_values=past, use_cache=True)
    layer.stable_kv = past  # accepted context only: a tree's keys stay in its round
    return hidden[:, -1:], past, position
