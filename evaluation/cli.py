"""``svip-bench``: the command line. What a user can get wrong ends in one sentence and exit status 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from svip_adapters.errors import SvipAdaptersError

from .errors import BenchError
from .policy_list import measured

__all__ = ["main"]

POLICIES = "host,fixed:5,heuristic,confidence:threshold=0.4,svip:threshold=0.3"
NEEDED = ("rich", "matplotlib", "jinja2", "transformers")
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 1 (greedy outputs differ in float32), 2 or 130."""
    args = _parser().parse_args(arguments)
    sys.path.append(os.getcwd())  # a user's own policy, module:Class, lives where the command is run
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        return command(args)
    except SvipAdaptersError as error:
        print(f"svip-bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "\nsvip-bench: stopped; what is finished is kept, the same command goes on from there.",
            file=sys.stderr,
        )
        return INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    from . import prompts
    from .extras import import_extra
    from .hosts import load_host
    from .precision import choose_dtype

    for module in NEEDED:
        import_extra(module)
    import torch

    policies = measured(args.policies, args.baseline)
    questions = prompts.load(args.prompts, data=args.data, limit=args.limit, max_turns=args.max_turns)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise BenchError("expected a GPU for --device cuda, found none that torch can use; use --device cpu.")
    if args.threads:
        torch.set_num_threads(args.threads)
    dtype, reason = choose_dtype(args.dtype, args.device)
    print(
        f"dtype: {dtype}, {reason}; {torch.get_num_threads()} threads; {len(questions)} prompt(s)", flush=True
    )
    weights = {"model_path": args.model_path, "ea_model_path": args.ea_model_path}
    host = load_host(args.host, dtype=dtype, device=args.device, weights=weights)
    return _measure(args, host, questions, policies)


def _measure(args: argparse.Namespace, host: Any, questions: list[Any], policies: list[str]) -> int:
    import torch

    from . import report
    from .bench import Bench, Settings
    from .differences import differences, show
    from .progress import Progress

    settings = Settings(
        prompt_set=args.prompts,
        policies=tuple(policies),
        baseline=args.baseline,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=args.seed,
        threads=torch.get_num_threads(),
    )
    bench = Bench(host, questions, settings, args.out)
    if len(bench.todo) < len(questions):
        print(
            f"continuing: {len(questions) - len(bench.todo)} of {len(questions)} prompts are done", flush=True
        )
    with Progress(bench.turns_left) as progress:
        summary = bench.run(progress.advance)
    report.write(args.out)
    report.print_table(summary)
    host.print_published()
    exact = show(differences(bench.folder.answers), dtype=host.dtype)
    print(f"report: {args.out / 'report.html'}")
    return 0 if exact else 1


def _report(args: argparse.Namespace) -> int:
    import json

    from . import report

    file = args.folder / "summary.json"
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(
            f"expected the summary of a finished run in {file}, found: {error}; "
            "run svip-bench run --out with that folder first (it continues a run that was stopped)."
        ) from error
    report.write(args.folder)
    report.print_table(summary)
    return 0


def _policies(args: argparse.Namespace) -> int:
    from svip_adapters.policies import POLICIES as RULES

    rules = {name: (rule.__doc__ or "").strip().splitlines()[0] for name, rule in RULES.items()}
    rules |= {
        "plain": "The target alone; always runs.",
        "host": "What the host does by default.",
        "module:Class": "A LengthPolicy of your own, importable from where you run this.",
    }
    width = max(map(len, rules))
    for name, line in rules.items():
        print(f"{name:<{width}}  {line}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="svip-bench", description="How much faster does a rule for the draft length make generation?"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="measure policies on prompts; continues a run that was stopped")
    run.set_defaults(command=_run)
    add = run.add_argument
    add("--host", default="transformers", help="transformers, eagle2 or eagle (default: %(default)s)")
    add("--model-path", metavar="PATH", help="with --host eagle: the target, a folder or a name on the hub")
    add("--ea-model-path", metavar="PATH", help="with --host eagle: the EAGLE head")
    add(
        "--policies",
        default=POLICIES,
        metavar="A,B",
        help="name or name:argument=value,... (default: %(default)s)",
    )
    add("--baseline", default="host", help="policy that speed-ups are against (default: %(default)s)")
    add(
        "--prompts",
        default="builtin",
        help="builtin, mt_bench, spec_bench, humaneval, gsm8k, alpaca, qa, sum, or FILE.jsonl",
    )
    add(
        "--data",
        type=Path,
        metavar="DIR",
        help="read the public prompt sets from here instead of the network",
    )
    add("--limit", type=_count, metavar="N", help="so many prompts, spread evenly over the categories")
    add("--max-turns", type=_count, metavar="N", help="so many turns of each prompt")
    add(
        "--max-new-tokens",
        type=_count,
        default=128,
        metavar="N",
        help="most tokens a turn (default: %(default)s)",
    )
    add(
        "--temperature",
        type=_temperature,
        default=0.0,
        metavar="T",
        help="0 is greedy (default: %(default)s)",
    )
    add(
        "--dtype",
        choices=["auto", "bfloat16", "float16", "float32"],
        default="auto",
        help="auto: what the machine is fast at",
    )
    add("--device", choices=["cpu", "cuda"], default="cpu", help="(default: %(default)s)")
    add("--threads", type=_count, metavar="N", help="CPU threads (default: torch's choice)")
    add(
        "--seed",
        type=_seed,
        default=0,
        metavar="N",
        help="of sampling and of the intervals (default: %(default)s)",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="folder for answers, summary and report")
    report = commands.add_parser("report", help="write the report of a finished run again")
    report.set_defaults(command=_report)
    report.add_argument("folder", type=Path, metavar="DIR")
    policies = commands.add_parser("policies", help="list the rules, one line each")
    policies.set_defaults(command=_policies)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text}")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, found {text}")
    return value


def _temperature(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, found {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
