"""Traces and cost models on disk: what is read is what was written, a stopped recording goes on."""

from dataclasses import replace

import pytest
import torch
from bench_hosts import HOSTS
from test_replay import PROMPTS, recorded_for

from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.replay.costs import CostModel, read_costs, write_costs
from svip_adapters.evaluation.replay.nodes import Nodes
from svip_adapters.evaluation.replay.recording import record
from svip_adapters.evaluation.replay.replaying import Replaying
from svip_adapters.evaluation.replay.rounds import Replayed
from svip_adapters.evaluation.replay.trace import read_trace

pytest.importorskip("pyarrow")

COSTS = CostModel({1: 1.0, 3: 2.0}, {1: 0.2, 4: 0.5}, (0.5, 0.1), 0.05, 0.01, 0.02, {"host": "glide"})


@pytest.fixture(scope="module")
def host():
    return HOSTS["glide"]()


class Killed(Exception):
    pass


def test_a_recording_that_was_stopped_goes_on_and_reads_back_the_same(host, tmp_path):
    whole, stopped = tmp_path / "whole.parquet", tmp_path / "stopped.parquet"
    record(host, PROMPTS, recorded_for(host, length=8), whole)

    def stop(task):
        raise Killed

    with pytest.raises(Killed):
        record(host, PROMPTS, recorded_for(host, length=8), stopped, stop)
    assert not stopped.exists()
    done = list((tmp_path / "stopped.parquet.parts").glob("*"))
    assert len(done) == 1
    written = done[0].stat().st_mtime_ns
    asked = []
    record(host, PROMPTS, recorded_for(host, length=8), stopped, asked.append)
    assert asked == [prompt.category for prompt in PROMPTS]
    assert written < stopped.stat().st_mtime_ns
    assert not (tmp_path / "stopped.parquet.parts").exists()
    a, b = read_trace(whole), read_trace(stopped)
    assert a.recorded == b.recorded == recorded_for(host, length=8)
    assert a.tasks == ["a", "b"]
    for one, other in zip(a.texts, b.texts, strict=True):
        assert replace(one, nodes=None) == replace(other, nodes=None)
        for name, value in vars(one.nodes).items():
            theirs = getattr(other.nodes, name)
            assert torch.equal(value, theirs) if isinstance(value, torch.Tensor) else value == theirs
    assert [(text.question, text.turn) for text in a.texts] == [(1, 0), (1, 1), (2, 0), (3, 0)]


def test_what_is_recorded_is_what_the_host_drafts(host):
    ids = host.generate([3, 7], policy="plain", max_new_tokens=6, temperature=0.0, seed=0).ids
    nodes: Nodes = host.record([3, 7], ids, length=3, top_k=2, floor=0.0).nodes()
    assert nodes.starts == [0, 0, 3, 6, 9, 12, 15]
    assert nodes.parents.tolist()[:6] == [-1, 0, 1, -1, 3, 4]
    probe = host.probe([3, 7], ids)
    assert nodes.entropy[0].item() == pytest.approx(probe[1][0], rel=1e-4)
    assert (nodes.tokens[0, 0].item() == ids[1]) == probe[1][1]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"length": 9}, "length was 8, is 9"), ({"dtype": "bfloat16"}, "dtype was float32, is bfloat16")],
)
def test_recordings_are_not_mixed(host, tmp_path, change, message):
    out = tmp_path / "trace.parquet"

    def stop(task):
        raise Killed

    with pytest.raises(Killed):
        record(host, PROMPTS, recorded_for(host, length=8), out, stop)
    with pytest.raises(BenchError, match=message):
        record(host, PROMPTS, recorded_for(host, **{"length": 8} | change), out)


def test_hosts_that_cannot_be_recorded_say_so(host, tmp_path):
    eagle2 = HOSTS["eagle2"]()
    with pytest.raises(BenchError, match="expected --top-k 4, the host's, found 3"):
        eagle2.record([3, 7], [1, 2], length=3, top_k=3, floor=0.1)


@pytest.mark.parametrize(("name", "policy"), [("glide", "fixed:8@max_length=8"), ("transformers", "host")])
def test_a_rule_that_drafts_beyond_the_recording_is_an_error(name, policy, tmp_path):
    host, out = HOSTS[name](), tmp_path / "trace.parquet"
    record(host, PROMPTS, recorded_for(host, length=2), out)
    with pytest.raises(BenchError, match="give it a max_length of 2"):
        Replaying(read_trace(out))(policy)


@pytest.mark.parametrize("name", HOSTS)
def test_answers_of_one_token_are_recorded(name, tmp_path):
    host, out = HOSTS[name](), tmp_path / "trace.parquet"
    record(host, PROMPTS, recorded_for(host, max_new_tokens=1), out)
    replaying = Replaying(read_trace(out))
    for policy in ("host", "fixed:3"):
        assert [turn.accept_lengths for turn in replaying(policy)] == [[1]] * 4


@pytest.mark.parametrize("content", [None, b"no parquet", b""])
def test_another_file_is_no_trace(tmp_path, content):
    path = tmp_path / "trace.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BenchError, match="svip-bench record --out"):
        read_trace(path)


def test_a_cost_model_reads_back_the_same(tmp_path):
    path = tmp_path / "costs.json"
    write_costs(path, COSTS)
    assert read_costs(path) == COSTS


@pytest.mark.parametrize("content", ["{}", '{"schema": 9}', "[]", "no JSON"])
def test_another_file_is_no_cost_model(tmp_path, content):
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(BenchError, match="svip-bench calibrate"):
        read_costs(path)


def test_seconds_are_those_of_the_parts():
    done = Replayed()
    done.add(gained=1)
    done.draft.update({1: 2, 4: 1})
    done.add(gained=3, length=2, nodes=2, accepted=2)
    start, rounds = 0.5 + 0.1 * 7, (1.0 + 0.05) + (2.0 + 0.05)
    steps = 2 * (0.2 + 0.01) + (0.5 + 0.01)
    assert COSTS.seconds(done, 7) == pytest.approx(start - 1.0 + rounds + steps)
    assert COSTS.plain(7, 4) == pytest.approx(start - 1.0 + 4 * 1.02)
    assert COSTS.verification(3) == pytest.approx(2.5)  # beyond what was measured: as between the last two
    assert COSTS.step(8) == pytest.approx(0.9 + 0.01)
    read = replace(COSTS, draft_prompt=(0.1, 0.2))
    assert read.seconds(done, 7) == pytest.approx(COSTS.seconds(done, 7) + 0.1 + 0.2 * 7 - 0.2)
    assert replace(COSTS, target={1: 1.0, 2: 3.0, 3: 2.0}).target == {1: 1.0, 2: 3.0, 3: 3.0}
    assert replace(COSTS, draft={2: 0.3}).step(9) == pytest.approx(0.31)
