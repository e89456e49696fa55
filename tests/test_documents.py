"""What the documents and the Makefile say is true of the code."""

import re
import shlex
from pathlib import Path

import pytest

from svip_adapters.evaluation import cli
from svip_adapters.evaluation.policy_list import rule_of
from svip_adapters.policies import parse_policy, split_policies

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "third_party").glob("*.md")]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
VARIABLES = dict(re.findall(r"^(\w+) \?= *(.*)$", MAKEFILE, re.MULTILINE))


def name(path):
    return path.relative_to(ROOT).as_posix()


def blocks(language):
    """The fenced blocks of all documents in one language."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def bench_commands():
    """Every call of svip-bench in a shell block or the Makefile, as words."""
    text = re.sub(r"\\\n\s*", " ", "\n".join([*blocks("sh"), MAKEFILE]))
    lines = re.findall(
        r"(?:^|[\s/])svip-bench ((?:run|report|policies|record|calibrate|replay|tune|serve)\b.*)", text
    )
    return [
        shlex.split(re.sub(r"\$\((\w+)\)", lambda m: VARIABLES[m[1]], line), comments=True) for line in lines
    ]


def test_python_compiles():
    assert blocks("python")
    for snippet in blocks("python"):
        compile(snippet, "README.md", "exec")


def test_own_rule_of_the_readme_passes_the_check():
    """The block that defines a rule runs as it stands, `check_policy` included."""
    (block,) = (block for block in blocks("python") if "check_policy" in block)
    exec(compile(block, "README.md", "exec"), {"__name__": "my_rules"})


def test_svip_bench_knows_every_flag(capsys):
    commands = {"run", "report", "policies", "record", "calibrate", "replay", "tune", "serve"}
    assert commands == {words[0] for words in bench_commands()}
    for words in bench_commands():
        with pytest.raises(SystemExit):
            cli.main([words[0], "--help"])
        usage = capsys.readouterr().out
        for flag in (word for word in words if word.startswith("--")):
            assert re.search(rf"{flag}\b", usage), f"svip-bench {words[0]} has no {flag}"


def test_readme_lists_every_option_of_svip_bench(capsys):
    for command in ("run", "record", "calibrate", "replay", "tune", "serve"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {option for option in options if option not in readme} == set()


def test_rules_can_be_built():
    """In commands and in the table of rules; `my_rules:...` is the reader's own."""
    rules = set(re.findall(r"^\| `([a-z]+[^`.]*)` \| `[A-Z]", (ROOT / "README.md").read_text(), re.MULTILINE))
    for words in bench_commands():
        if "--policies" in words:
            rules |= set(map(rule_of, split_policies(words[words.index("--policies") + 1])))
    built = {rule for rule in rules if not rule.startswith("my_rules")} - {"host", "none"}
    assert len(built) > 5
    for rule in built:
        assert parse_policy(rule)


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
    named = set()
    for path in DOCUMENTS:
        named |= set(re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_relative_links_lead_somewhere():
    for path in DOCUMENTS:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{name(path)}: {link}"
