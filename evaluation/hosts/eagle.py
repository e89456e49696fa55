"""Upstream EAGLE-2 and EAGLE-3 (SafeAILab/EAGLE) as a benchmark host, on weights that you have.

``plain`` is the authors' own ``naivegenerate``. Both it and ``eagenerate`` look at the limit after a round
only: they are told to stop one token earlier, and what a last round adds beyond the limit is not counted.
"""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import torch

from ..errors import BenchError
from ..extras import import_extra
from ..paper import print_paper
from .base import Generation, Host, chat_ids, timed, versions_of
from .tree_meter import TreeMeter
from .tree_rules import TreeRules

__all__ = ["EagleHost"]

INSTALL = "pip install --no-deps git+https://github.com/SafeAILab/EAGLE@cb7e084, with transformers 4.53.3"
MAX_LENGTH = 2048  # of the key-value buffer, which upstream makes once


class EagleHost(Host):
    """An upstream ``EaModel``, one sequence at a time.

    Args:
        model: as ``EaModel.from_pretrained`` returns it.
        target_name, draft_name: as printed in the report.
    """

    name = "eagle"

    def __init__(self, model: Any, *, target_name: str, draft_name: str) -> None:
        self.model, self.tokenizer = model.eval(), model.tokenizer
        self.target_name, self.draft_name = target_name, draft_name
        weight = model.base_model.lm_head.weight
        self.dtype, self.device = str(weight.dtype).removeprefix("torch."), weight.device.type
        self._tree = TreeRules(model)

    @classmethod
    def load(cls, *, dtype: str, device: str, model_path: str, ea_model_path: str) -> EagleHost:
        """Load weights of your own: folders, or names on the Hugging Face hub.

        Raises:
            BenchError: upstream's code is not installed.
        """
        try:
            upstream = importlib.import_module("eagle.model.ea_model")
        except ImportError as error:
            raise BenchError(
                f"expected SafeAILab/EAGLE's package eagle, found that it cannot be imported ({error}); "
                f"install it: {INSTALL}."
            ) from error
        model = upstream.EaModel.from_pretrained(
            use_eagle3="draft_vocab_size" in _config(ea_model_path),
            base_model_path=model_path,
            ea_model_path=ea_model_path,
            torch_dtype=getattr(torch, dtype),
            device_map=device,
        )
        return cls(model, target_name=Path(model_path).name, draft_name=Path(ea_model_path).name)

    def versions(self) -> dict[str, str]:
        return versions_of(self.model.base_model, self.model.ea_layer)

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        if self.tokenizer.chat_template:
            return chat_ids(self.tokenizer, messages)
        # Vicuna's tokenizer has no template; the authors' own evaluation takes FastChat's.
        chat = import_extra("fastchat.model").get_conversation_template(self.target_name)
        for message in messages:
            chat.append_message(chat.roles[message["role"] != "user"], message["content"])
        chat.append_message(chat.roles[1], None)
        ids: list[int] = self.tokenizer(chat.get_prompt())["input_ids"]
        return ids

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def forget(self) -> None:
        self._tree.forget()

    def check(self, policy: str) -> None:
        self._tree.check(policy)

    def generate(
        self, prompt: list[int], *, policy: str, max_new_tokens: int, temperature: float, seed: int
    ) -> Generation:
        room = MAX_LENGTH - self.model.ea_layer.total_tokens - 10
        if len(prompt) + max_new_tokens > room:
            raise BenchError(
                f"expected a prompt and answer of at most {room} tokens, found {len(prompt)} + "
                f"{max_new_tokens}; lower --max-new-tokens, or leave the prompt out."
            )
        arguments = {
            "input_ids": torch.tensor([prompt], device=self.device),
            "max_new_tokens": max_new_tokens - 1,
            "max_length": MAX_LENGTH,
            "temperature": temperature,
        }
        torch.manual_seed(seed)
        random.seed(seed)
        with TreeMeter(self.model, len(prompt)) as meter:
            if policy == "plain":
                seconds, output = timed(self.device, lambda: self.model.naivegenerate(**arguments))
            else:
                with self._tree.applied(policy), meter.recording():
                    seconds, output = timed(self.device, lambda: self.model.eagenerate(**arguments))
        ids = output[0, len(prompt) :].tolist()[:max_new_tokens]
        if (end := self.tokenizer.eos_token_id) in ids:
            ids = ids[: ids.index(end) + 1]
        return meter.generation(ids, seconds)

    def probe(self, prompt: list[int], ids: list[int]) -> list[tuple[float, bool]]:
        """Not told: EAGLE-3 drafts from states that only its own target's forward gives out."""
        return []

    def print_published(self) -> None:
        print_paper()


def _config(path: str) -> dict[str, Any]:
    local = Path(path) / "config.json"
    file = local if local.is_file() else import_extra("huggingface_hub").hf_hub_download(path, "config.json")
    found: dict[str, Any] = json.loads(Path(file).read_text())
    return found
