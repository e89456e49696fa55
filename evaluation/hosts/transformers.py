"""Hugging Face assisted generation as a benchmark host, on the embedded models or on any pair given to it.

``host`` is assisted generation as it comes (20 tokens, confidence gate 0.4, re-fitted where
scikit-learn is installed); what it learns in one turn is put back after it, so that an answer depends
on its prompt and seed alone. A rule object lives for the whole run, as it does in a server.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from svip_adapters import signals
from svip_adapters.policies import parse_policy
from svip_adapters.policy import LengthPolicy

from ..extras import import_extra
from ..meter import Meter
from ..replay.nodes import NodeLog, Nodes
from ..replay.recorders import record_chains
from ..replay.sampled_recorder import record_sampled
from .base import Generation, Host, cache_keyword, chat_ids, timed, versions_of

__all__ = ["TransformersHost"]


class TransformersHost(Host):
    """Target and draft on plain transformers, one sequence at a time.

    Args:
        target: causal language model that verifies.
        draft: causal language model with the same vocabulary.
        tokenizer: of both, with a chat template.
        target_name, draft_name: as printed in the report.
    """

    name = "transformers"
    drafter = "smollm2-draft"
    tokens_decide = True

    def __init__(
        self,
        target: Any,
        draft: Any,
        tokenizer: Any,
        *,
        target_name: str = "target",
        draft_name: str = "draft",
    ) -> None:
        self.target, self.draft, self.tokenizer = target.eval(), draft.eval(), tokenizer
        self.target_name, self.draft_name = target_name, draft_name
        self.dtype = str(target.dtype).removeprefix("torch.")
        self.device = target.device.type
        self._rules: dict[str, LengthPolicy] = {}

    @classmethod
    def load(cls, *, dtype: str, device: str) -> Self:
        """The embedded SmolLM2 and its drafter for this host.

        Raises:
            SvipAdaptersError: the models are not installed; the message gives the command.
        """
        from . import smollm2

        logging = import_extra("transformers.utils.logging")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        target = smollm2.load_target(dtype, device=device)
        names = {"target_name": "SmolLM2-135M-Instruct", "draft_name": cls.drafter}
        return cls(target, cls.load_draft(target), smollm2.load_tokenizer(), **names)

    @classmethod
    def load_draft(cls, target: Any) -> Any:
        """The trained drafter of the embedded target."""
        from . import smollm2

        return smollm2.load_draft(target)

    def versions(self) -> dict[str, str]:
        return versions_of(self.target, self.draft)

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        return chat_ids(self.tokenizer, messages)

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def generate(
        self, prompt: list[int], *, policy: str, max_new_tokens: int, temperature: float, seed: int
    ) -> Generation:
        inputs = self._tensor(prompt)
        arguments = {
            "attention_mask": torch.ones_like(inputs),
            "generation_config": self._config(max_new_tokens, temperature),
            "assistant_model": None if policy == "plain" else self.draft,
        }
        with self._drafting(policy), Meter(self.target, self.draft) as meter:
            torch.manual_seed(seed)
            seconds, output = timed(self.device, lambda: self.target.generate(inputs, **arguments))
        ids = output[0, len(prompt) :].tolist()
        gained, drafted, accepted = meter.rounds(len(prompt), ids)
        return Generation(
            ids=ids,
            seconds=seconds,
            accept_lengths=gained,
            draft_lengths=drafted,
            accepted=accepted,
            draft_steps=meter.draft_steps,
            target_forwards=meter.target_forwards,
            nodes_verified=sum(drafted),
        )

    def forget(self) -> None:
        self._rules.clear()

    def probe(self, prompt: list[int], ids: list[int]) -> list[tuple[float, bool]]:
        with torch.inference_mode():
            logits = self.draft_logits(self._tensor(prompt + ids), len(ids))
            entropy = signals.entropy(logits).tolist()
            agrees = (logits.argmax(dim=-1) == torch.tensor(ids, device=self.device)).tolist()
        return list(zip(entropy, agrees, strict=True))

    def draft_logits(self, tokens: Tensor, count: int) -> Tensor:
        """(count, V) logits with which a draft would begin before each of ``tokens``' last ``count``."""
        logits: Tensor = self.draft(input_ids=tokens[:, :-1], logits_to_keep=count).logits[0]
        return logits

    def record(self, prompt: list[int], ids: list[int], *, length: int, top_k: int, floor: float) -> NodeLog:
        eos = self.target.generation_config.eos_token_id
        return record_chains(self.draft, self._tensor(prompt), ids, length=length, top_k=top_k, eos=eos)

    def record_sampled(
        self, prompt: list[int], ids: list[int], *, length: int, temperature: float, seed: int
    ) -> Nodes:
        heat = (temperature, self._draft_temperature(temperature))
        eos = self.target.generation_config.eos_token_id
        models = self.target, self.draft
        return record_sampled(
            *models, self._tensor(prompt), ids, length=length, temperatures=heat, seed=seed, eos=eos
        )

    def _draft_temperature(self, temperature: float) -> float:
        """What the host samples the draft at: 4.57 to 5.24 hand the target's processors to the draft's
        ``generate``, which makes its own as well, so that logits are divided by the temperature twice."""
        if temperature == 1:
            return temperature
        config = self._config(1, temperature)
        config.output_scores = config.output_logits = config.return_dict_in_generate = True
        output = self.draft.generate(
            self._tensor([0]),
            attention_mask=self._tensor([1]),
            generation_config=config,
            logits_processor=[import_extra("transformers").TemperatureLogitsWarper(temperature)],
        )
        raw, scaled = (each[0][each[0].isfinite()].double().std() for each in (output.logits, output.scores))
        return float(temperature ** round(math.log(raw / scaled, temperature)))

    def gap(
        self,
        prompt: list[int],
        ids: list[int],
        position: int,
        accept_lengths: list[int],
        draft_lengths: list[int],
    ) -> float | None:
        # Refused tokens are not known any more; whatever stands in for them, the shapes are as they were (a
        # tree counts as a chain of its depth).
        tokens = prompt + ids + ids[-1:] * max(draft_lengths)
        key = cache_keyword(self.target)
        state: dict[str, Any] = {}
        first, begin = 0, 0  # of the new tokens, of the whole sequence: where this round starts
        with torch.inference_mode():
            for gained, drafted in zip(accept_lengths, draft_lengths, strict=True):
                end = len(prompt) + first + drafted
                inputs = self._tensor(tokens[begin:end])
                mask = torch.ones(1, end, dtype=torch.long, device=self.device)
                output = self.target(
                    input_ids=inputs, attention_mask=mask, use_cache=True, logits_to_keep=drafted + 1, **state
                )
                if position < first + gained:
                    best = output.logits[0, position - first].float().topk(2).values
                    return float(best[0] - best[1])
                first += gained
                begin = len(prompt) + first - 1
                if end > begin:
                    output[key].crop(begin - end)
                state = {key: output[key]}
        return None

    def _tensor(self, ids: list[int]) -> torch.Tensor:
        return torch.tensor([ids], device=self.device)

    def _config(self, max_new_tokens: int, temperature: float) -> Any:
        own = self.target.generation_config
        pad = own.pad_token_id if own.pad_token_id is not None else self.tokenizer.pad_token_id
        sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
        return import_extra("transformers").GenerationConfig(
            max_new_tokens=max_new_tokens,
            do_sample=temperature > 0,
            eos_token_id=own.eos_token_id,
            pad_token_id=pad,
            **sampling,
        )

    @contextlib.contextmanager
    def _drafting(self, policy: str) -> Iterator[None]:
        from svip_adapters import patch_transformers

        if policy == "plain":
            yield
            return
        if policy == "host":
            before = copy.deepcopy(self.draft.generation_config)
            try:
                yield
            finally:
                self.draft.generation_config = before
            return
        if policy not in self._rules:
            self._rules[policy] = parse_policy(policy)
        with patch_transformers(self.draft, policy=self._rules[policy]):
            yield
