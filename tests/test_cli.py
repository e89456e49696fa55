"""The command line: a whole run, and every mistake a user can make in one sentence."""

import json
import linecache
import re
import subprocess
import sys
import types

import pytest
import torch

from svip_adapters import evaluation
from svip_adapters.errors import PolicyError
from svip_adapters.evaluation import cli, extras, hosts
from svip_adapters.evaluation.hosts.base import Generation, Host
from svip_adapters.evaluation.policy_list import measured, own_rules


class EchoHost(Host):
    """Answers with the start of the prompt; the policy named in ``wrong`` makes a mistake."""

    name, target_name, draft_name, dtype, device = "echo", "big", "small", "float32", "cpu"
    wrong = None
    stop_after = None

    def __init__(self, dtype):
        self.dtype, self.calls = dtype, 0

    @classmethod
    def load(cls, *, dtype, device):
        return cls(dtype)

    def versions(self):
        return {"echo": "1"}

    def encode(self, messages):
        return [ord(c) for c in messages[-1]["content"]]

    def decode(self, ids):
        return "".join(map(chr, ids))

    def generate(self, prompt, *, policy, max_new_tokens, temperature, seed):
        self.calls += 1
        if self.calls == self.stop_after:
            raise KeyboardInterrupt
        ids = [i + (policy == self.wrong) for i in prompt[:max_new_tokens]]
        n = len(ids)
        return Generation(ids, 0.01, [1] * n, [0] * n, 0, 0, n, 0)

    def probe(self, prompt, ids):
        return [(0.0, True)] * len(ids)


@pytest.fixture
def echo(monkeypatch):
    """The command with a host that needs no models and a report that draws nothing."""
    report = types.ModuleType("report")
    report.written, report.printed = [], []
    report.write, report.print_table = report.written.append, report.printed.append
    monkeypatch.setattr(evaluation, "report", report, raising=False)
    monkeypatch.setitem(sys.modules, "svip_adapters.evaluation.report", report)
    module = types.ModuleType("echo_host")
    module.EchoHost = EchoHost
    monkeypatch.setitem(sys.modules, "svip_adapters.evaluation.hosts.echo", module)
    monkeypatch.setitem(hosts.HOSTS, "echo", ".echo:EchoHost")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return report


def run(out, *more):
    return cli.main(
        ["run", "--host", "echo", "--limit", "2", "--max-new-tokens", "4", "--out", str(out), *more]
    )


def test_a_whole_run(tmp_path, echo, capsys):
    assert (
        run(
            tmp_path,
            "--policies",
            "svip:threshold=0.3,scale=0.2,fixed:5",
            "--dtype",
            "float32",
            "--threads",
            "1",
        )
        == 0
    )
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {c["policy"] for c in summary["cells"]} == {
        "plain",
        "host",
        "svip:threshold=0.3,scale=0.2",
        "fixed:5",
    }
    assert (echo.written, echo.printed) == ([tmp_path], [summary])
    out = capsys.readouterr().out
    assert "dtype: float32, as asked" in out
    assert "16/16 turns, 0:00 left" in out


def test_ctrl_c_and_the_same_command_again(tmp_path, echo, capsys, monkeypatch):
    monkeypatch.setattr(EchoHost, "stop_after", 12)
    assert run(tmp_path, "--policies", "host,fixed:5") == 130
    assert "the same command goes on from there" in capsys.readouterr().err
    monkeypatch.setattr(EchoHost, "stop_after", None)
    assert run(tmp_path, "--policies", "host,fixed:5") == 0
    assert "continuing: 1 of 2 prompts are done" in capsys.readouterr().out


@pytest.mark.parametrize(("dtype", "status"), [("float32", 1), ("bfloat16", 0)])
def test_a_wrong_greedy_output_is_listed_and_fails_in_float32(
    tmp_path, echo, capsys, monkeypatch, dtype, status
):
    monkeypatch.setattr(EchoHost, "wrong", "fixed:5")
    assert run(tmp_path, "--policies", "fixed:5", "--dtype", dtype) == status
    out = capsys.readouterr().out
    assert out.count("differs from plain: fixed:5, question") == 2
    assert "turn 1, token 1; top two logits apart by unknown" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "mtbench"], "did you mean 'mt_bench'"),
        (["--prompts", "absent.jsonl"], "could not read"),
        (["--prompts", "gsm8k", "--data", "nowhere"], "found no such file"),
        (["--policies", "svipp:threshold=0.3"], "[Dd]id you mean"),
        (["--policies", "svip:treshold=0.3"], "treshold"),
        (["--policies", ","], "at least one policy"),
        (["--policies", "no_such_module:Rule"], "no_such_module"),
        (["--baseline", "fixd:5"], "[Dd]id you mean"),
        (["--host", "transformer"], "did you mean|unknown host"),
        (["--out", "/proc/nowhere"], "choose another --out"),
    ],
)
def test_mistakes_end_in_one_sentence(tmp_path, echo, capsys, arguments, message):
    assert run(tmp_path, *arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("svip-bench: ")
    assert re.search(message, err)
    assert "Traceback" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "bad", [["--limit", "0"], ["--temperature", "-1"], ["--max-new-tokens", "x"], ["--seed", "-1"]]
)
def test_bad_numbers_are_refused_by_the_parser(tmp_path, capsys, bad):
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, *bad)
    assert bad[0] in capsys.readouterr().err


def test_no_gpu(tmp_path, echo, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(tmp_path, "--device", "cuda") == 2
    assert "--device cpu" in capsys.readouterr().err


def test_missing_libraries(tmp_path, echo, capsys, monkeypatch):
    def absent(name, *rest):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(extras.importlib, "import_module", absent)
    assert run(tmp_path) == 2
    assert "pip install 'svip-adapters[eval]'" in capsys.readouterr().err


def test_a_policy_of_the_users_own_from_the_current_folder(tmp_path, echo, monkeypatch):
    (tmp_path / "my_rule.py").write_text(
        "from svip_adapters.policy import LengthPolicy\n"
        "class Mine(LengthPolicy):\n"
        "    def __init__(self, level=0.5, top=2): self.level = level\n"
        "    def stop(self, step): return step.top1_prob < self.level\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path / "out", "--policies", "my_rule:Mine,my_rule:Mine:level=0.2,top=3") == 0
    policies = {c["policy"] for c in json.loads((tmp_path / "out" / "summary.json").read_text())["cells"]}
    assert policies == {"plain", "host", "my_rule:Mine", "my_rule:Mine:level=0.2,top=3"}


def test_an_edited_rule_is_another_rule(tmp_path, monkeypatch):
    """Answers of the rule before the edit must not pass for those after it."""
    monkeypatch.syspath_prepend(tmp_path)
    source = "from svip_adapters import Fixed\nclass Edited(Fixed): pass\n"
    found = []
    for text in (source, source + "# edited\n"):
        (tmp_path / "edited_rule.py").write_text(text)
        linecache.checkcache()
        found.append(
            own_rules(["plain", "host", "fixed:3", "edited_rule:Edited:2", "any:svip+edited_rule:Edited:2"])
        )
    assert set(found[0]) == {"edited_rule:Edited:2", "any:svip+edited_rule:Edited:2"}
    assert all(found[0][policy] != found[1][policy] for policy in found[0])


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        ("host,fixed:5", ["plain", "host", "fixed:5"]),
        (
            "svip:threshold=0.3,scale=0.15,fixed:5",
            ["plain", "host", "svip:threshold=0.3,scale=0.15", "fixed:5"],
        ),
        ("fixed:5,host, fixed:5,plain", ["plain", "fixed:5", "host"]),
        ("table:1=5,8=3,32=0,svip", ["plain", "host", "table:1=5,8=3,32=0", "svip"]),
    ],
)
def test_commas_between_policies_and_inside_them(text, policies):
    assert measured(text, "host") == policies


def test_an_argument_cannot_come_first():
    with pytest.raises(PolicyError):
        measured("threshold=0.3,svip", "host")


def test_policies_are_listed(capsys):
    assert cli.main(["policies"]) == 0
    out = capsys.readouterr().out
    for name in ("svip", "fixed", "host", "plain", "module:Class"):
        assert re.search(rf"^{name} +\w.*\.$", out, re.MULTILINE)


def test_report_again(tmp_path, echo, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "svip-bench run --out" in capsys.readouterr().err
    run(tmp_path, "--policies", "fixed:5")
    assert cli.main(["report", str(tmp_path)]) == 0
    assert echo.written == [tmp_path, tmp_path]


def test_runs_as_a_module_and_help_needs_no_torch():
    code = (
        "import sys, runpy; sys.argv = ['svip-bench', '--help']\n"
        "try: runpy.run_module('svip_adapters.evaluation.cli', run_name='__main__')\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "{run" in found.stdout or "COMMAND" in found.stdout
    assert found.stdout.endswith("False\n")
