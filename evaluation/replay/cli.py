"""``svip-bench record``, ``calibrate``, ``replay`` and ``tune``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import arguments
from ..errors import BenchError

if TYPE_CHECKING:
    from .costs import CostModel
    from .table import Table
    from .trace import Recorded

__all__ = ["add_commands"]

RULES = ("heuristic", "confidence:threshold=0.4", "adaedl", "svip:threshold=0.3", "rate_optimal")
HOSTS = "transformers, eagle2, glide or glide_cape"
LENGTHS = {"transformers": 40, "eagle2": 10, "glide": 16, "glide_cape": 16}


def add_commands(commands: Any) -> None:
    """Add the four to the parser's subcommands."""
    record = commands.add_parser("record", help="note what the draft would propose everywhere: a trace")
    record.set_defaults(command=_record)
    record.add_argument("--host", default="transformers", help=f"{HOSTS} (default: %(default)s)")
    arguments.add_prompts(record, new_tokens=64)
    arguments.add_sampling(record, seeds="sampling")
    arguments.add_machine(record)
    record.add_argument(
        "--length", type=arguments.count, metavar="N", help="most tokens of a chain, or levels of a tree"
    )
    record.add_argument(
        "--floor",
        type=arguments.probability,
        default=0.01,
        metavar="P",
        help="of a tree, keep every node whose path is likelier (default: %(default)s)",
    )
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="Parquet file")

    calibrate = commands.add_parser("calibrate", help="measure what a host's forwards cost on this machine")
    calibrate.set_defaults(command=_calibrate)
    calibrate.add_argument("--host", default="transformers", help=f"{HOSTS} (default: %(default)s)")
    arguments.add_machine(calibrate)
    calibrate.add_argument("--repeats", type=arguments.count, default=3, metavar="N")
    calibrate.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON file")

    replay = commands.add_parser("replay", help="what rules would have done on a trace, exactly")
    replay.set_defaults(command=_replay)
    _add_trace(replay)
    replay.add_argument("--policies", metavar="A,B", help=f"as for run (default: host,{','.join(RULES)})")
    tune = commands.add_parser("tune", help="the best setting of each rule on a trace, cross-validated")
    tune.set_defaults(command=_tune)
    _add_trace(tune)
    tune.add_argument("--folds", type=arguments.count, default=5, metavar="N", help="(default: %(default)s)")
    tune.add_argument("--plot", type=Path, metavar="FILE", help="speed-up by threshold, a PNG file")


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE")
    cost = parser.add_mutually_exclusive_group(required=True)
    cost.add_argument("--costs", type=Path, metavar="FILE", help="what svip-bench calibrate wrote")
    cost.add_argument(
        "--ratio",
        type=float,
        metavar="C",
        help="instead: a draft step costs C forwards of the target, whatever they verify",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--draws",
        type=arguments.count,
        metavar="N",
        help="of a sampled trace: draws of what is accepted, to average what learns over (default: 16)",
    )


def _record(args: argparse.Namespace) -> int:
    from ..extras import import_extra
    from ..hosts import load_host
    from ..progress import Progress
    from ..prompts import digest
    from ..starting import prompts_of, require_writable, start
    from .recording import record
    from .trace import Recorded

    for module in ("pyarrow", "rich", "transformers"):
        import_extra(module)
    questions = prompts_of(args)
    require_writable(args.out)
    host = load_host(args.host, dtype=start(args, len(questions)), device=args.device)
    recorded = Recorded(
        host=host.name,
        target=host.target_name,
        draft=host.draft_name,
        dtype=host.dtype,
        versions=host.versions(),
        prompts={"set": args.prompts, "digest": digest(questions)},
        max_new_tokens=args.max_new_tokens,
        length=_length(args.length, host),
        top_k=host.limits.get("top_k", max(host.limits.get("prob_to_top", [1]))),
        floor=args.floor if "depth" in host.limits else 0.0,
        limits=host.limits,
        temperature=args.temperature,
        seed=args.seed if args.temperature else 0,
    )
    with Progress(len(questions)) as progress:
        record(host, questions, recorded, args.out, progress.advance)
    print(f"trace: {args.out}")
    return 0


def _length(wanted: int | None, host: Any) -> int:
    """Tokens or levels to record: no fewer than the host drafts by itself."""
    from .gate import LENGTH

    limits = host.limits
    own = limits["depth"] + 1 if "depth" in limits else limits.get("drafted", LENGTH)
    length: int = wanted or LENGTHS.get(host.name, own)
    if length < own:
        raise BenchError(
            f"expected --length of at least {own}, which {host.name} drafts by itself, found {length}."
        )
    return length


def _calibrate(args: argparse.Namespace) -> int:
    from ..hosts import load_host
    from ..prompts import load
    from ..starting import require_writable, start
    from .calibrate import calibrate
    from .costs import write_costs

    require_writable(args.out)
    questions = load("builtin", limit=8, max_turns=1)
    host: Any = load_host(args.host, dtype=start(args, len(questions)), device=args.device)
    prompts = [host.encode([{"role": "user", "content": question.turns[0]}]) for question in questions]
    model = calibrate(host, prompts, repeats=args.repeats)
    write_costs(args.out, model)
    alone = model.verification(0) + model.per_token
    print(f"the target alone: {1000 * alone:.1f} ms a token")
    for tokens, seconds in model.target.items():
        print(f"target, {tokens} tokens: {1000 * seconds:.1f} ms")
    for rows, seconds in model.draft.items():
        print(f"draft, {rows} rows: {1000 * (seconds + model.per_step):.1f} ms")
    print(f"a round beside these: {1000 * model.per_round:.1f} ms\ncosts: {args.out}")
    return 0


def _costs(args: argparse.Namespace, recorded: Recorded) -> CostModel:
    from .costs import CostModel, read_costs

    if args.costs is None:
        if not 0 < args.ratio < float("inf"):
            raise BenchError(f"expected --ratio above 0, found {args.ratio}; 0.1 is a draft of a tenth.")
        return CostModel({1: 1.0}, {1: args.ratio}, (1.0, 0.0), 0.0, 0.0, 0.0, {"ratio": args.ratio})
    model = read_costs(args.costs)
    for name in ("host", "dtype"):
        wanted, found = getattr(recorded, name), model.about.get(name)
        if found != wanted:
            raise BenchError(
                f"expected costs of the trace's {name}, {wanted}, found {found!r} in {args.costs}; measure "
                f"them with svip-bench calibrate --host {recorded.host} --dtype {recorded.dtype}."
            )
    return model


def _table(args: argparse.Namespace) -> tuple[Table, CostModel]:
    from .sampling import DRAWS
    from .table import Table
    from .trace import read_trace

    trace = read_trace(args.trace)
    if args.draws and not trace.recorded.temperature:
        raise BenchError(
            f"expected a sampled trace with --draws, found a greedy one at {args.trace}, where what is "
            "accepted is known; leave --draws out, or record with --temperature."
        )
    costs = _costs(args, trace.recorded)
    return Table(trace, costs, args.draws or DRAWS), costs


def _replay(args: argparse.Namespace) -> int:
    from ..policy_list import measured
    from ..starting import require_writable
    from . import output

    require_writable(args.json)
    table, costs = _table(args)
    recorded = table.trace.recorded
    floor = recorded.floor
    rules = args.policies or ",".join(f"{rule}@min_probability={floor}" if floor else rule for rule in RULES)
    policies = [policy for policy in measured(rules, "host") if policy != "plain"]
    cells = table.cells(policies)
    output.print_cells(recorded, cells)
    if args.json:
        output.write_cells(args.json, recorded, costs, cells)
    return 0


def _tune(args: argparse.Namespace) -> int:
    from ..starting import require_writable
    from . import output
    from .tune import tune

    require_writable(args.json, args.plot)
    found = tune(_table(args)[0], folds=args.folds)
    output.print_tuned(found)
    if args.json:
        output.write_tuned(args.json, found)
    if args.plot:
        args.plot.write_bytes(output.plot_tuned(found))
        print(f"plot: {args.plot}")
    return 0
