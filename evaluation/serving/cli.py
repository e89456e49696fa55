"""``svip-bench serve``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import arguments
from ..errors import BenchError

if TYPE_CHECKING:
    from .run import Settings
    from .vllm_engine import Models

__all__ = ["add_command"]

POLICIES = "none,host,svip:threshold=0.3,rate_optimal"


def add_command(commands: Any) -> None:
    """Add it to the parser's subcommands."""
    serve = commands.add_parser("serve", help="measure policies on a serving engine, by clients at once")
    serve.set_defaults(command=_serve)
    add = serve.add_argument
    add("--engine", choices=["vllm"], default="vllm", help="(default: %(default)s)")
    add(
        "--policies",
        default=POLICIES,
        metavar="A,B",
        help="rules; none is the target alone and always runs, host the engine's own drafting "
        "(default: %(default)s)",
    )
    add(
        "--concurrency",
        type=_levels,
        default=(1, 4, 16, 64),
        metavar="N,N",
        help="clients that ask at once, each number measured (default: 1,4,16,64)",
    )
    add(
        "--repeats",
        type=arguments.count,
        default=8,
        metavar="N",
        help="batches of prompts at each concurrency, each answered by all servers (default: %(default)s)",
    )
    add(
        "--num-speculative-tokens",
        type=arguments.count,
        default=5,
        metavar="N",
        help="what host drafts, and the most a rule can (default: %(default)s)",
    )
    arguments.add_prompts(serve, new_tokens=32, turns=False)
    add("--model-path", metavar="PATH", help="the target, a folder or a name on the hub (default: embedded)")
    add("--draft-path", metavar="PATH", help="its draft model, with --model-path")
    arguments.add_machine(serve)
    add("--engine-args", default="", metavar="'...'", help="more arguments of every server")
    add(
        "--timeout",
        type=arguments.count,
        default=600,
        metavar="S",
        help="most seconds for all servers to start, and for a batch (default: %(default)s)",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="folder for answers, summary, report and logs")


def _levels(text: str) -> tuple[int, ...]:
    """``1,4,16``: whole numbers of at least 1, doubles dropped, in order."""
    try:
        found = tuple(sorted({arguments.count(piece) for piece in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers of clients such as 1,4,16, found {text!r}"
        ) from None
    return found


def _policies(text: str) -> tuple[str, ...]:
    """``none``, then the list; each rule is built once, so that a wrong one is found before servers start.

    Raises:
        PolicyError: an unknown rule, or arguments it does not take.
    """
    from svip_adapters.policies import parse_policy, split_policies

    from .cells import REFERENCES

    policies = split_policies(text)
    for policy in policies:
        if policy not in REFERENCES:
            parse_policy(policy)
    return tuple(dict.fromkeys(["none", *policies]))


def _serve(args: argparse.Namespace) -> int:
    from ..extras import import_extra
    from ..progress import Progress
    from ..starting import prompts_of, start
    from . import output, vllm_engine
    from .run import ServeBench
    from .server import free_ports, require_memory, running

    for module in ("rich", "matplotlib"):
        import_extra(module)
    policies, versions, questions = _policies(args.policies), vllm_engine.versions(), prompts_of(args)
    models = _models(args, start(args, len(questions)), len(policies))
    bench = ServeBench(questions, _settings(args, models, policies, versions), args.out)
    if bench.todo:
        if not args.model_path:
            require_memory(len(policies), vllm_engine.EMBEDDED_MEMORY)
        launches = {
            policy: vllm_engine.launch(models, policy, port)
            for policy, port in zip(policies, free_ports(len(policies)), strict=True)
        }
        print(f"starting {len(launches)} servers; their logs: {args.out / 'logs'}", flush=True)
        with running(launches, args.out / "logs", seconds=args.timeout) as servers:
            client = vllm_engine.Client(args.max_new_tokens, args.timeout)
            with Progress(bench.batches_left, what="batches") as progress:
                bench.run(servers, client, progress.advance)
    summary = bench.summarize()
    output.write(summary, args.out)
    output.print_table(summary)
    print(f"report: {args.out / 'report.md'}")
    return 0


def _models(args: argparse.Namespace, dtype: str, servers: int) -> Models:
    from .vllm_engine import Models, model_folders

    if bool(args.model_path) != bool(args.draft_path):
        raise BenchError(
            "expected --model-path and --draft-path together, found one of them; name both, or "
            "neither for the embedded pair."
        )
    target, draft = (args.model_path, args.draft_path) if args.model_path else map(str, model_folders())
    return Models(
        target=target,
        draft=draft,
        dtype=dtype,
        device=args.device,
        threads=args.threads,
        drafted=args.num_speculative_tokens,
        clients=max(args.concurrency),
        servers=servers,
        arguments=args.engine_args,
    )


def _settings(
    args: argparse.Namespace, models: Models, policies: tuple[str, ...], versions: dict[str, str]
) -> Settings:
    from .run import Settings

    return Settings(
        engine=args.engine,
        versions=versions,
        target=models.target,
        draft=models.draft,
        dtype=models.dtype,
        device=models.device,
        threads=models.threads,
        arguments=models.arguments,
        prompt_set=args.prompts,
        policies=policies,
        concurrency=args.concurrency,
        repeats=args.repeats,
        max_new_tokens=args.max_new_tokens,
        drafted=models.drafted,
    )
