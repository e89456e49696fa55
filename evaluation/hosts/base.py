"""What the benchmark driver asks of a host: encode, generate once, count; nothing about any engine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from ..errors import BenchError
from ..policy_list import host_options
from ..replay.nodes import NodeLog, Nodes

__all__ = ["Generation", "Host", "cache_keyword", "chat_ids", "timed", "versions_of"]

Result = TypeVar("Result")


def chat_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """Token ids of a chat by the tokenizer's own template, ready for the assistant's next answer."""
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def cache_keyword(model: Any) -> str:
    """What the forward of a transformers model calls its cache, as a parameter and in its output."""
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"  # transformers 5.x and 4.57


def timed(device: str, function: Callable[[], Result]) -> tuple[float, Result]:
    """Wall seconds of a call, and what it returned; work queued on a GPU is waited for on both sides."""
    synchronize: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    result = function()
    synchronize()
    return time.perf_counter() - start, result


def versions_of(target: nn.Module, draft: nn.Module) -> dict[str, str]:
    """What an answer depends on: libraries, and a digest of each model's weights."""
    found = {"python": platform.python_version()}
    for name in ("svip-adapters", "torch", "transformers", "scikit-learn"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found | {"target_weights": _digest(target), "draft_weights": _digest(draft)}


def _digest(model: nn.Module) -> str:
    """Twelve hexadecimal digits that change with shape or training: a sample of every weight is hashed."""
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        digest.update(f"{name}{tuple(weight.shape)}{weight.dtype}".encode())
        digest.update(weight.flatten()[:256].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Generation:
    """One turn, generated once.

    Attributes:
        ids: new token ids; ids are what is counted, for every policy and for the target alone.
        seconds: wall time of the call, processing of the prompt included, device synchronised.
        accept_lengths: tokens gained in each round, the target's own one included; sums to ``len(ids)``.
        draft_lengths: tokens drafted and sent to the target in each round (a tree: its depth); 0: no draft.
        accepted: gained tokens that the draft had proposed. Each round adds one token of the target's own
            to them, except a last round that ends on a drafted token (end of sequence, or the limit), so
            ``len(ids) - accepted`` is the number of rounds or one less.
        draft_steps: forwards of the draft.
        target_forwards: forwards of the target, the one over the prompt included.
        nodes_verified: drafted tokens sent to the target; ``sum(draft_lengths)`` on a chain.
    """

    ids: list[int]
    seconds: float
    accept_lengths: list[int]
    draft_lengths: list[int]
    accepted: int
    draft_steps: int
    target_forwards: int
    nodes_verified: int


class Host(ABC):
    """One engine with its models loaded.

    Attributes:
        name: as on the command line. target_name, draft_name, dtype, device: as printed in the report.
        tokens_decide: what is drafted depends on the tokens before it alone, not on where the round began:
            it can be recorded from a sampled text.
    """

    tokens_decide: bool = False

    name: str
    target_name: str
    draft_name: str
    dtype: str
    device: str

    @property
    def limits(self) -> dict[str, Any]:
        """How far the host drafts by default: ``drafted`` tokens, ``max_length`` under a rule and CaPE's
        ``prob_to_top`` (GliDe); ``depth``, ``top_k`` and ``total_tokens`` (trees); none of them elsewhere."""
        return {}

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Libraries and weights this run depends on; a run continues only under the same ones."""

    def check(self, policy: str) -> None:
        """Refuse a policy of the command line that this host cannot run, before anything is measured.

        Args:
            policy: as in ``generate``; options of the host stand behind an @.

        Raises:
            BenchError: an option that the host does not take.
        """
        host_options(policy, {})

    @abstractmethod
    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a chat (``role`` and ``content`` each), ready for the assistant's next answer."""

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """Text of generated ids, special tokens left out."""

    @abstractmethod
    def generate(
        self, prompt: list[int], *, policy: str, max_new_tokens: int, temperature: float, seed: int
    ) -> Generation:
        """Generate one turn, timed and counted.

        Args:
            prompt: token ids.
            policy: ``plain`` (the target alone), ``host`` (the host's own default) or a rule's name.
            max_new_tokens: most tokens to generate.
            temperature: 0 is greedy.
            seed: of the random numbers; the same seed gives the same answer.
        """

    def forget(self) -> None:  # noqa: B027 - optional
        """Begin anew with rules that keep what they learn from one sequence to the next."""

    @abstractmethod
    def probe(self, prompt: list[int], ids: list[int]) -> list[tuple[float, bool]]:
        """The draft, shown the target's own answer: one untimed forward.

        Returns:
            For each of ``ids``: the draft's entropy (nats) just before it, and whether the draft's top
            choice is that token.
        """

    def record(self, prompt: list[int], ids: list[int], *, length: int, top_k: int, floor: float) -> NodeLog:
        """What the draft would propose before each of ``ids``, the target's own greedy answer.

        Args:
            length: most tokens of a chain, or levels of a tree.
            top_k: children kept of each distribution.
            floor: of a tree, every node is kept whose path is likelier.

        Raises:
            BenchError: this host cannot be recorded, or not so.
        """
        raise BenchError(f"expected a host that can be recorded, found {self.name}; use an embedded one.")

    def record_sampled(
        self, prompt: list[int], ids: list[int], *, length: int, temperature: float, seed: int
    ) -> Nodes:
        """What the draft would propose before each of ``ids``, which the target sampled, see there; where
        ``tokens_decide``.

        Args:
            length: most tokens of a chain.
            temperature: that ``ids`` were sampled at.
            seed: of what is drawn and not said.
        """
        raise NotImplementedError

    def print_published(self) -> None:  # noqa: B027 - optional
        """Print what others published about this host, marked as theirs; nothing unless there is."""

    def gap(
        self,
        prompt: list[int],
        ids: list[int],
        position: int,
        accept_lengths: list[int],
        draft_lengths: list[int],
    ) -> float | None:
        """Distance of the target's two highest logits before ``ids[position]``, computed in forwards of the
        shapes that the rounds had (rows of a matrix product round differently for different shapes).
        None where the host cannot tell."""
        return None
