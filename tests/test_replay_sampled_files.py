"""Sampled traces on disk and on the command line: they go on, are not mixed with others, end in tables."""

import json
from dataclasses import replace

import pytest
import torch
from bench_hosts import HOSTS
from test_replay import PROMPTS, recorded_for
from test_replay_cli import run

from svip_adapters.evaluation import hosts
from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.replay import trace as trace_file
from svip_adapters.evaluation.replay.recording import record
from svip_adapters.evaluation.replay.trace import read_trace, write_trace

pytest.importorskip("pyarrow")
pytest.importorskip("rich")

SAMPLED = {"length": 4, "max_new_tokens": 5, "top_k": 1, "temperature": 0.8, "seed": 3}
RULES = "host,heuristic,fixed:2,svip:threshold=0.5"


class Killed(Exception):
    pass


def stop(task):
    raise Killed


def test_a_recording_that_was_stopped_goes_on_and_reads_back_the_same(tmp_path):
    host = HOSTS["transformers"]()
    about, whole, stopped = recorded_for(host, **SAMPLED), tmp_path / "a.parquet", tmp_path / "b.parquet"
    record(host, PROMPTS, about, whole)
    with pytest.raises(Killed):
        record(host, PROMPTS, about, stopped, stop)
    torch.manual_seed(99)
    record(host, PROMPTS, about, stopped)
    a, b = read_trace(whole), read_trace(stopped)
    assert a.recorded == b.recorded == about
    for one, other in zip(a.texts, b.texts, strict=True):
        assert replace(one, nodes=None) == replace(other, nodes=None)
        for name, value in vars(one.nodes).items():
            theirs = getattr(other.nodes, name)
            assert torch.equal(value, theirs) if isinstance(value, torch.Tensor) else value == theirs
        own = torch.tensor(one.nodes.starts[:-1])
        assert one.nodes.tokens[own, 0].tolist() == one.ids
        assert one.nodes.accept.dtype == torch.float64
        assert 0 <= one.nodes.accept.min() < one.nodes.accept.max() <= 1
    assert len({tuple(text.ids) for text in a.texts}) == len(a.texts)  # a seed for each turn


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0, "seed": 0}, "temperature was 0.8, is 0.0; seed was 3, is 0"),
        ({"temperature": 1.0}, "temperature was 0.8, is 1.0"),
        ({"seed": 4}, "seed was 3, is 4"),
    ],
)
def test_recordings_are_not_mixed(tmp_path, change, message):
    host, out = HOSTS["transformers"](), tmp_path / "trace.parquet"
    with pytest.raises(Killed):
        record(host, PROMPTS[1:], recorded_for(host, **SAMPLED), out, stop)
    with pytest.raises(BenchError, match=message):
        record(host, PROMPTS[1:], recorded_for(host, **SAMPLED | change), out)


def test_traces_of_schema_1_are_read(tmp_path, monkeypatch):
    host, out = HOSTS["transformers"](), tmp_path / "trace.parquet"
    about = recorded_for(host, length=3, max_new_tokens=4)
    record(host, PROMPTS[1:], about, out)
    new = read_trace(out)

    def before(recorded):
        return {k: v for k, v in vars(recorded).items() if k not in ("temperature", "seed")}

    monkeypatch.setattr(trace_file, "SCHEMA", 1)
    monkeypatch.setattr(trace_file, "asdict", before)
    write_trace(out, about, new.texts)
    old = read_trace(out)
    assert old.recorded == new.recorded
    assert [text.ids for text in old.texts] == [text.ids for text in new.texts]
    monkeypatch.setattr(trace_file, "SCHEMA", 3)
    write_trace(out, about, new.texts)
    with pytest.raises(BenchError, match=r"expected a trace of schema 1 or 2 at .*, found 3"):
        read_trace(out)


@pytest.fixture
def prompts(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rows = [{"question_id": i, "category": "ab"[i % 2], "turns": [f"{i + 1} 7 1"]} for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def load(monkeypatch, name):
    host = HOSTS[name]()
    monkeypatch.setattr(hosts, "load_host", lambda *_, **options: host)


def sampled(name):
    options = ["--max-new-tokens", 8, "--dtype", "float32", "--length", 20, "--temperature", 0.8, "--seed", 1]
    return run("record", "--host", name, "--prompts", "prompts.jsonl", "--out", "t.parquet", *options)


def test_from_a_sampled_recording_to_tables(prompts, monkeypatch, capsys):
    load(monkeypatch, "transformers")
    assert sampled("transformers") == 0
    replay = ["replay", "t.parquet", "--policies", RULES, "--ratio", 0.2, "--draws", 6]
    assert run(*replay, "--json", "cells.json") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "sampled at temperature 0.8: means over what is accepted, over 6 draws" in printed
    cells = json.loads((prompts / "cells.json").read_text())["cells"]
    found = {cell["policy"]: cell for cell in cells if cell["task"] == "overall"}
    tokens = found["plain"]["tokens"]
    for policy in ("host", "heuristic", "oracle"):
        assert found[policy]["draws"] == 6
    assert found["heuristic"]["speedup_error"] > 0
    for policy in ("plain", "best_fixed", "fixed:2", "svip:threshold=0.5"):
        assert (found[policy]["draws"], found[policy]["speedup_error"]) == (None, 0.0)
    for cell in found.values():
        assert cell["tokens"] == pytest.approx(tokens)
        assert cell["rounds"] + cell["accepted"] == pytest.approx(tokens)
        assert cell["modelled_seconds"] >= found["oracle"]["modelled_seconds"]
    pytest.importorskip("sklearn")
    tune = ["tune", "t.parquet", "--ratio", 0.2, "--folds", 2, "--draws", 2, "--json", "tuned.json"]
    assert run(*tune) == 0
    rules = {one["rule"]: one for one in json.loads((prompts / "tuned.json").read_text())["rules"]}
    assert {"fixed", "svip", "classifier"} <= set(rules)
    assert rules["fixed"]["held_out"] <= rules["fixed"]["speedups"][rules["fixed"]["best"]]


@pytest.mark.parametrize("name", ["eagle2", "glide", "glide_cape"])
def test_only_drafts_that_depend_on_nothing_but_tokens_are_sampled(name, prompts, monkeypatch, capsys):
    load(monkeypatch, name)
    assert sampled(name) == 2
    assert f"expected --temperature 0 to record {name}, found 0.8" in capsys.readouterr().err
    assert {path.name for path in prompts.iterdir()} == {"prompts.jsonl"}


def test_draws_of_a_greedy_trace_are_refused(prompts, capsys):
    host = HOSTS["transformers"]()
    record(host, PROMPTS[1:2], recorded_for(host, length=2, max_new_tokens=2), prompts / "t.parquet")
    assert run("replay", "t.parquet", "--ratio", 0.2, "--draws", 4) == 2
    assert "expected a sampled trace with --draws" in capsys.readouterr().err
