"""``svip-bench``: the command line. What a user can get wrong ends in one sentence and exit status 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from svip_adapters.errors import SvipAdaptersError

from . import arguments
from .errors import BenchError
from .policy_list import measured
from .replay.cli import add_commands
from .serving.cli import add_command

__all__ = ["main"]

POLICIES = "host,fixed:5,heuristic,confidence:threshold=0.4,svip:threshold=0.3"
NEEDED = ("rich", "matplotlib", "jinja2", "transformers")
HOSTS = "transformers, eagle2, glide, glide_cape, or eagle on weights of your own"
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 1 (greedy outputs differ in float32), 2 or 130."""
    args = _parser().parse_args(argv)
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
    from .extras import import_extra
    from .hosts import load_host
    from .starting import prompts_of, start

    for module in NEEDED:
        import_extra(module)
    policies = measured(args.policies, args.baseline)
    questions = prompts_of(args)
    dtype = start(args, len(questions))
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
    add("--host", default="transformers", help=f"{HOSTS} (default: %(default)s)")
    add("--model-path", metavar="PATH", help="with --host eagle: the target, a folder or a name on the hub")
    add("--ea-model-path", metavar="PATH", help="with --host eagle: the EAGLE head")
    add(
        "--policies",
        default=POLICIES,
        metavar="A,B",
        help="name or name:argument=value,... (default: %(default)s)",
    )
    add("--baseline", default="host", help="policy that speed-ups are against (default: %(default)s)")
    arguments.add_prompts(run, new_tokens=128)
    arguments.add_sampling(run, seeds="sampling and of the intervals")
    arguments.add_machine(run)
    add("--out", type=Path, required=True, metavar="DIR", help="folder for answers, summary and report")
    report = commands.add_parser("report", help="write the report of a finished run again")
    report.set_defaults(command=_report)
    report.add_argument("folder", type=Path, metavar="DIR")
    policies = commands.add_parser("policies", help="list the rules, one line each")
    policies.set_defaults(command=_policies)
    add_commands(commands)
    add_command(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
