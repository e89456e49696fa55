"""record, calibrate, replay and tune from the command line, on tiny hosts."""

import functools
import json
import time

import pytest
from bench_hosts import HOSTS

from svip_adapters.evaluation import cli, hosts
from svip_adapters.evaluation.replay import calibrate
from svip_adapters.evaluation.replay.costs import read_costs

pytest.importorskip("pyarrow")
pytest.importorskip("rich")

RULE = {"eagle2": "svip:threshold=0.7@min_probability=0.05"}


@pytest.fixture(params=HOSTS)
def name(request, monkeypatch, tmp_path):
    host = HOSTS[request.param]()
    monkeypatch.setattr(hosts, "load_host", lambda *_, **options: host)
    monkeypatch.chdir(tmp_path)
    rows = [{"question_id": i, "category": "ab"[i % 2], "turns": [f"{i + 1} 7 1 5"]} for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return request.param


def run(*arguments):
    return cli.main(list(map(str, arguments)))


def recorded(name):
    options = [
        "--max-new-tokens",
        12,
        "--dtype",
        "float32",
        "--length",
        11 if name == "eagle2" else 20,
        "--floor",
        0.02,
    ]
    return run("record", "--host", name, "--prompts", "prompts.jsonl", "--out", "t.parquet", *options)


def test_from_a_recording_to_tables(name, capsys, tmp_path):
    assert recorded(name) == 0
    rule = RULE.get(name, "svip:threshold=0.7")
    replay = ["replay", "t.parquet", "--policies", rule, "--ratio", 0.2, "--json", "cells.json"]
    assert run(*replay) == 0
    printed = capsys.readouterr().out
    assert "oracle" in printed
    assert "best_fixed" in printed
    found = json.loads((tmp_path / "cells.json").read_text())
    assert (found["schema"], found["host"]) == (1, name)
    assert {cell["task"] for cell in found["cells"]} == {"a", "b", "overall"}
    cells = {(cell["task"], cell["policy"]): cell for cell in found["cells"]}
    for task in ("a", "b", "overall"):
        ours = [cells[task, policy] for policy in ("plain", "best_fixed", "oracle", "host", rule)]
        assert len({cell["tokens"] for cell in ours}) == 1
        assert ours[0]["modelled_speedup"] == 1
        # None where hindsight cannot do better than the best fixed setting.
        assert (ours[1]["gap_closed"], ours[2]["gap_closed"]) in ((0, 1), (None, None))
        assert ours[2]["modelled_seconds"] == min(cell["modelled_seconds"] for cell in ours)
    assert (
        run("tune", "t.parquet", "--ratio", 0.2, "--folds", 2, "--json", "tuned.json", "--plot", "p.png") == 0
    )
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    tuned = {one["rule"]: one for one in json.loads((tmp_path / "tuned.json").read_text())["rules"]}
    assert {"fixed", "svip", "confidence"} <= set(tuned)
    for one in tuned.values():
        assert one["held_out"] <= one["speedups"][one["best"]] == max(one["speedups"].values())


def taking(module, now, seconds):
    """Let a forward of ``module`` take ``seconds(tokens)`` of a made-up time."""
    forward = module.forward

    @functools.wraps(forward)
    def slow(*args, **kwargs):
        now[0] += seconds((kwargs["input_ids"] if "input_ids" in kwargs else args[0]).shape[1])
        return forward(*args, **kwargs)

    module.forward = slow


def test_costs_are_measured(monkeypatch, tmp_path, capsys):
    host, now = HOSTS["transformers"](), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    taking(host.target.model, now, lambda tokens: 1 + tokens / 8)
    taking(host.draft, now, lambda tokens: 0.25)
    monkeypatch.setattr(hosts, "load_host", lambda *_, **options: host)
    monkeypatch.setattr(calibrate, "NEW_TOKENS", 8)
    monkeypatch.setattr(host, "encode", lambda messages: [3] * (len(messages[0]["content"]) % 9) + [7, 5, 1])
    monkeypatch.chdir(tmp_path)
    assert run("calibrate", "--repeats", 1, "--dtype", "float32", "--out", "costs.json") == 0
    assert "the target alone: 1125.0 ms a token" in capsys.readouterr().out
    costs = read_costs(tmp_path / "costs.json")
    assert costs.about["host"] == "transformers"
    assert {1, 2, 3} <= set(costs.target)
    assert costs.target == {tokens: 1 + tokens / 8 for tokens in costs.target}
    assert costs.prompt == pytest.approx((1, 0.125))
    assert costs.draft == pytest.approx({1: 0.25})
    assert costs.draft_prompt == pytest.approx((0.25, 0.0), abs=1e-9)
    assert (costs.per_round, costs.per_step, costs.per_token) == pytest.approx((0, 0, 0), abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "none.parquet", "--ratio", "0.1"], "svip-bench record --out none.parquet"),
        (["replay", "t.parquet", "--ratio", "-1"], "expected --ratio above 0"),
        (["replay", "t.parquet", "--costs", "c.json"], "svip-bench calibrate --out c.json"),
        (["replay", "t.parquet", "--ratio", "0.1", "--policies", "svip@depth=2"], "it takes"),
        (["replay", "t.parquet", "--ratio", "0.1", "--json", "no/where.json"], "a file that can be written"),
        (["tune", "t.parquet", "--ratio", "0.1", "--plot", "."], "a file that can be written"),
        (["tune", "t.parquet", "--ratio", "0.1", "--folds", "1"], "at least 2 folds"),
        (["record", "--out", "t.parquet", "--length", "3", "--dtype", "float32"], "--length of at least 4"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_sentence(arguments, message, monkeypatch, tmp_path, capsys):
    host = HOSTS["glide"]()
    monkeypatch.setattr(hosts, "load_host", lambda *_, **options: host)
    monkeypatch.chdir(tmp_path)
    rows = [{"question_id": 1, "category": "a", "turns": ["1 7 1 5"]}]
    (tmp_path / "prompts.jsonl").write_text(json.dumps(rows[0]))
    assert recorded("glide") == 0
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
