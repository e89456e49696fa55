"""How every command that runs models begins."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .errors import BenchError
from .prompts import Prompt, load

__all__ = ["prompts_of", "start"]


def prompts_of(args: argparse.Namespace) -> list[Prompt]:
    """The prompts that the arguments ask for; raises BenchError as ``prompts.load``."""
    return load(args.prompts, data=args.data, limit=args.limit, max_turns=args.max_turns)


def start(args: argparse.Namespace, prompts: int) -> str:
    """Set threads, choose and print the dtype; returns it.

    Raises:
        BenchError: there is no GPU.
    """
    import torch

    from .precision import choose_dtype

    if args.device == "cuda" and not torch.cuda.is_available():
        raise BenchError("expected a GPU for --device cuda, found none that torch can use; use --device cpu.")
    if args.threads:
        torch.set_num_threads(args.threads)
    dtype, reason = choose_dtype(args.dtype, args.device)
    print(f"dtype: {dtype}, {reason}; {torch.get_num_threads()} threads; {prompts} prompt(s)", flush=True)
    return dtype


def require_writable(*paths: Path | None) -> None:
    """Find out before the work is done that its result can be written.

    Raises:
        BenchError: there is no such folder, or a folder where the file should be.
    """
    for path in paths:
        if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
            raise BenchError(
                f"expected a file that can be written, found {path}; choose one in a folder of yours."
            )
