"""Train the embedded drafters: ``python -m svip_adapters.evaluation.train STEP``, steps in this order."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from svip_adapters.errors import SvipAdaptersError

BORROWED, TRAINED = 2, 2
DRAFTERS = {"chain": "the chain drafter", "eagle": "EAGLE-2's draft layer", "glide": "GliDe's, on `keys`"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m svip_adapters.evaluation.train", description=__doc__.partition(":")[0]
    )
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("generate", help="let the target answer made-up prompts")
    step.add_argument("out", type=Path, help="JSONL file; appended to until it holds --count answers")
    step.add_argument("--count", type=int, default=800)
    step = steps.add_parser("converse", help="let the target write questions and answers; stores states too")
    step.add_argument("out", type=Path, help="folder of chunk files")
    step.add_argument("--tokens", type=int, default=250_000, help="answer tokens")
    step.add_argument("--seed", type=int, default=0, help="one a process, when several fill one folder")
    step = steps.add_parser("states", help="store what the target computes on its answers")
    step.add_argument("answers", type=Path, nargs="+", help="JSONL files of the target's own answers")
    step.add_argument("--out", type=Path, required=True, help="folder of chunk files")
    step = steps.add_parser("keys", help="store the target's last keys and values on stored texts")
    step.add_argument("states", type=Path, nargs="+", help="folders of chunk files")
    step.add_argument("--out", type=Path, required=True, help="folder of chunk files")
    for name, drafter in DRAFTERS.items():
        step = steps.add_parser(name, help=f"train {drafter} on stored states")
        step.add_argument("states", type=Path, nargs="+", help="folders of chunk files")
        step.add_argument("--out", type=Path, required=True, help="safetensors file")
        step.add_argument("--start-from", type=Path, help="a file to go on from")
        step.add_argument("--minutes", type=float, default=60.0)
        step.add_argument("--rate", type=float, default=1.2e-3, help="highest learning rate")
        step.add_argument("--seed", type=int, default=0)
        if name == "eagle":
            step.add_argument("--draft-steps", type=int, default=3, help="depth of its drafts in training")
    step = steps.add_parser(
        "export-eagle", help="write the EAGLE-2 layer and the target for upstream's EaModel"
    )
    step.add_argument("out", type=Path, help="folder; gets base/ and head/")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one step; a known failure is one sentence and exit status 2."""
    arguments = _parser().parse_args(argv)
    try:
        _run(arguments)
    except SvipAdaptersError as error:
        print(f"train: {error}", file=sys.stderr)
        return 2
    return 0


def _run(arguments: argparse.Namespace) -> None:
    from ..hosts import smollm2
    from . import chain, conversations, distil, eagle_head, export_eagle, generate, glide, keys, states, text

    target, out = smollm2.load_target("float32"), arguments.out
    if arguments.step == "export-eagle":
        export_eagle.export_eagle(target, smollm2.model_dir(), out)
    elif arguments.step == "generate":
        generate.generate(target, smollm2.load_tokenizer(), out, count=arguments.count)
    elif arguments.step == "converse":
        wanted = {"tokens": arguments.tokens, "seed": arguments.seed}
        conversations.converse(target, smollm2.load_tokenizer(), out, borrowed=BORROWED, **wanted)
    elif arguments.step == "states":
        answers = text.read_answers(arguments.answers, smollm2.load_tokenizer())
        states.store_states(target, answers, out, borrowed=BORROWED)
    elif arguments.step == "keys":
        keys.store_keys(target, arguments.states, out)
    else:
        recipe = distil.Recipe(minutes=arguments.minutes, rate=arguments.rate, seed=arguments.seed)
        start = arguments.start_from
        if arguments.step == "eagle":
            steps = arguments.draft_steps
            eagle_head.train(target, arguments.states, out, recipe, steps=steps, start_from=start)
        elif arguments.step == "glide":
            glide.train(target, arguments.states, out, recipe, start_from=start)
        else:
            layers = {"borrowed": BORROWED, "trained": TRAINED}
            chain.train(target, arguments.states, out, recipe, start_from=start, **layers)


if __name__ == "__main__":
    sys.exit(main())
