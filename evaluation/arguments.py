"""Arguments that several commands take."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_machine", "add_prompts", "add_sampling", "count", "probability", "seed", "temperature"]


def add_prompts(parser: argparse.ArgumentParser, *, new_tokens: int, turns: bool = True) -> None:
    """Which prompts, and how much of them; without ``turns`` the first turn of each."""
    add = parser.add_argument
    add(
        "--prompts",
        default="builtin",
        help="builtin, mt_bench, spec_bench, humaneval, gsm8k, alpaca, qa, sum, FILE.jsonl, or several: A,B",
    )
    add(
        "--data",
        type=Path,
        metavar="DIR",
        help="read the public prompt sets from here instead of the network",
    )
    add("--limit", type=count, metavar="N", help="so many prompts, spread evenly over the categories")
    if turns:
        add("--max-turns", type=count, metavar="N", help="so many turns of each prompt")
    else:
        parser.set_defaults(max_turns=1)
    add(
        "--max-new-tokens",
        type=count,
        default=new_tokens,
        metavar="N",
        help="most tokens a turn (default: %(default)s)",
    )


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Number format, device and threads."""
    add = parser.add_argument
    add(
        "--dtype",
        choices=["auto", "bfloat16", "float16", "float32"],
        default="auto",
        help="auto: what the machine is fast at",
    )
    add("--device", choices=["cpu", "cuda"], default="cpu", help="(default: %(default)s)")
    add("--threads", type=count, metavar="N", help="CPU threads (default: torch's choice)")


def add_sampling(parser: argparse.ArgumentParser, *, seeds: str) -> None:
    """Temperature and seed.

    Args:
        seeds: what the seed is of.
    """
    add = parser.add_argument
    add(
        "--temperature",
        type=temperature,
        default=0.0,
        metavar="T",
        help="0 is greedy (default: %(default)s)",
    )
    add("--seed", type=seed, default=0, metavar="N", help=f"of {seeds} (default: %(default)s)")


def count(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text}")
    return value


def probability(text: str) -> float:
    """A number above 0 and below 1."""
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and below 1, found {text}")
    return value


def seed(text: str) -> int:
    """A whole number of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, found {text}")
    return value


def temperature(text: str) -> float:
    """A number of at least 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, found {text}")
    return value
