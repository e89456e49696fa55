"""Engines of vLLM on tiny random checkpoints, in this process, and the prompts they are asked."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import torch
from tiny import save_tokenizer, tiny_config
from transformers import LlamaForCausalLM

# Before vllm is imported: its defaults start processes and spin, 15 times slower on two cores.
for name, value in {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}.items():
    os.environ.setdefault(name, value)

VOCABULARY = 64
WIDE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}  # the kernels want heads of 32


def save_pair(folder: Path, noise: float = 0.05) -> tuple[Path, Path]:
    """Write (target, draft): a random Llama, and the same with noise on its weights."""
    torch.manual_seed(0)
    config = tiny_config(VOCABULARY, initializer_range=0.4, tie_word_embeddings=False, **WIDE)
    target = LlamaForCausalLM(config)
    target.save_pretrained(folder / "target")
    with torch.no_grad():
        for weight in target.parameters():
            weight.add_(noise * weight.std() * torch.randn_like(weight))
    target.save_pretrained(folder / "draft")
    for name in ("target", "draft"):
        save_tokenizer(VOCABULARY, folder / name)
    return folder / "target", folder / "draft"


def start(model: Path, draft: Path | None = None, length: int = 5, **options: Any) -> Any:
    """A ``vllm.LLM``; with ``draft``, one that drafts ``length`` tokens a round."""
    from vllm import LLM

    if draft is not None:
        options.setdefault("speculative_config", {"method": "draft_model", "model": str(draft)})
        options["speculative_config"] = {"num_speculative_tokens": length, **options["speculative_config"]}
    return LLM(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        **{
            "distributed_executor_backend": "uni",
            "max_model_len": 128,
            "max_num_seqs": 4,
            "enable_prefix_caching": False,
            **options,
        },
    )


def prompts(count: int = 16) -> list[dict[str, list[int]]]:
    """Of 3 to 30 tokens."""
    draw = torch.Generator().manual_seed(1)
    lengths = [3 + (7 * i) % 28 for i in range(count)]
    ids = [torch.randint(3, VOCABULARY, (n,), generator=draw).tolist() for n in lengths]
    return [{"prompt_token_ids": one} for one in ids]


def answer(llm: Any, asked: list[dict[str, list[int]]], **options: Any) -> list[list[int]]:
    """The token ids of each answer, greedy unless told; 10 to 40 tokens, some end before."""
    from vllm import SamplingParams

    params = [
        SamplingParams(**{"temperature": 0, "max_tokens": 10 + 2 * i, **options}) for i in range(len(asked))
    ]
    outputs = llm.generate(asked, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def runner(llm: Any) -> Any:
    """The model runner of an engine in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


@contextlib.contextmanager
def logged() -> Any:
    """The records of the adapter's own logger; vLLM's do not reach the root."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    log, keep = logging.getLogger("vllm.plugins.svip_adapters"), Keep()
    log.addHandler(keep)
    try:
        yield records
    finally:
        log.removeHandler(keep)
