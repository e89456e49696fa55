"""vLLM's servers: how they are started, and a run on real ones (marked vllm)."""

import dataclasses
import itertools
import json

import pytest

from svip_adapters.errors import HostVersionError
from svip_adapters.evaluation import cli
from svip_adapters.evaluation.serving import vllm_engine

MODELS = vllm_engine.Models(
    target="T", draft="D", dtype="float32", device="cpu", threads=None, drafted=5, clients=16, servers=3
)


def options(command):
    """{option: what follows it}."""
    return dict(itertools.pairwise(command))


def test_none_does_not_draft_and_host_has_no_rule():
    commands = {p: options(vllm_engine.launch(MODELS, p, 80).command) for p in ("none", "host", "fixed:2")}
    assert "--speculative-config" not in commands["none"]
    drafting = json.loads(commands["host"]["--speculative-config"])
    assert drafting == {"method": "draft_model", "model": "D", "num_speculative_tokens": 5}
    assert "--additional-config" not in commands["host"]
    assert commands["fixed:2"]["--speculative-config"] == commands["host"]["--speculative-config"]
    rule = json.loads(commands["fixed:2"]["--additional-config"])["length_policy"]
    assert rule == {"name": "fixed:2", "strict": True}
    common = ("--model", "--dtype", "--host", "--port", "--max-num-seqs", "--enforce-eager")
    assert len({tuple(found[name] for name in common[:-1]) for found in commands.values()}) == 1


def test_environment(monkeypatch):
    """What the user has set counts; --threads counts more."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert vllm_engine.launch(MODELS, "none", 80).environment["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert vllm_engine.launch(MODELS, "none", 80).environment["OMP_NUM_THREADS"] == "5"
    two = dataclasses.replace(MODELS, threads=2, arguments="--seed 3")
    assert vllm_engine.launch(two, "none", 80).environment["OMP_NUM_THREADS"] == "2"
    assert options(vllm_engine.launch(two, "none", 80).command)["--seed"] == "3"


def test_on_a_gpu():
    """Memory is shared; what the adapter needs is set for rules only: none and host run as vLLM comes."""
    gpu = dataclasses.replace(MODELS, device="cuda")
    none, rule = (vllm_engine.launch(gpu, policy, 80) for policy in ("none", "fixed:2"))
    assert "--enforce-eager" not in none.command
    assert options(none.command)["--gpu-memory-utilization"] == "0.30"
    assert "--no-async-scheduling" not in none.command
    assert "--no-async-scheduling" in rule.command
    assert rule.environment["VLLM_USE_V2_MODEL_RUNNER"] == "0"


@pytest.mark.parametrize(
    ("installed", "message"),
    [({}, "found none installed"), ({"vllm": "0.31.2"}, "found vllm 0.31.2"), ({"vllm-cpu": "0.32.0"}, None)],
)
def test_version_is_checked(monkeypatch, installed, message):
    monkeypatch.setattr(vllm_engine, "_version", installed.get)
    if message is None:
        assert vllm_engine.versions()["vllm-cpu"] == "0.32.0"
    else:
        with pytest.raises(HostVersionError, match=message):
            vllm_engine.versions()


@pytest.mark.vllm
def test_real_servers(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setattr(vllm_engine, "EMBEDDED_MEMORY", 2.7)  # few prompts take less
    rule = "svip:threshold=0.3"
    command = ["serve", "--policies", f"none,host,{rule}", "--concurrency", "1,4", "--repeats", "1"]
    command += ["--prompts", "builtin", "--limit", "4", "--max-new-tokens", "8", "--dtype", "float32"]
    assert cli.main([*command, "--out", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    found = {(cell["concurrency"], cell["policy"]): cell for cell in summary["cells"]}
    assert set(found) == {(level, policy) for level in (1, 4) for policy in ("none", "host", rule)}
    for cell in found.values():
        assert (cell["requests"], cell["identical"]) == (4, 4)
        assert 4 < cell["tokens"] <= 32
        assert 0 < cell["first_token"]["median"] < cell["seconds"]
    for level in (1, 4):
        assert found[level, "none"]["drafted"] == 0
        host, ours = found[level, "host"], found[level, rule]
        assert 0 < ours["accepted"] <= ours["drafted"] < host["drafted"]
        assert ours["drafted"] < 5 * ours["drafts"]
    assert "against host" in capsys.readouterr().out
