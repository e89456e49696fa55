"""svip-bench serve without an engine: order, counts, ratios, resuming, and every mistake in one sentence."""

import json

import pytest
from serving import HEALTHY, EchoClient, launch

from svip_adapters.evaluation import cli
from svip_adapters.evaluation.serving import vllm_engine
from svip_adapters.evaluation.serving.cells import cells, headlines, outcome

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

RULE = "svip:threshold=0.3"


@pytest.fixture
def echo(monkeypatch, tmp_path):
    """The command with a client that needs no engine; its clients, one a run."""
    clients = []

    class Client(EchoClient):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            clients.append(self)

    monkeypatch.setattr(vllm_engine, "versions", lambda: {"vllm": "0.32.0"})
    monkeypatch.setattr(vllm_engine, "model_folders", lambda: ("target", "draft"))
    monkeypatch.setattr(vllm_engine, "launch", lambda models, policy, port: launch(HEALTHY, port))
    monkeypatch.setattr(vllm_engine, "Client", Client)
    monkeypatch.setattr(vllm_engine, "EMBEDDED_MEMORY", 0.0)
    rows = [{"question_id": i, "turns": [f"prompt {i}", "more"]} for i in range(6)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    Client.clients = clients
    return Client


def run(*more):
    base = ["--policies", f"host,{RULE}", "--concurrency", "1,8", "--repeats", "2", "--dtype", "float32"]
    return cli.main(["serve", *base, "--prompts", "prompts.jsonl", "--out", "run", *more])


def test_a_whole_run(echo, tmp_path, capsys):
    assert run() == 0
    (client,) = echo.clients
    policies = ["none", "host", RULE]
    assert [asked[0] for asked in client.asked[:3]] == policies  # warming up
    batches = [client.asked[i : i + 3] for i in range(3, len(client.asked), 3)]
    assert [batch[0][1] for batch in batches] == [1, 8, 1, 8]
    for batch in batches:
        assert {asked[0] for asked in batch} == set(policies)
        assert len({asked[1:] for asked in batch}) == 1  # the same prompts, back to back
    assert len({batch[0][0] for batch in batches}) == 3  # each policy goes first at times
    assert batches[0][0][2] == ("prompt 0", "prompt 1", "prompt 2", "prompt 3")
    assert batches[2][0][2] == ("prompt 4", "prompt 5", "prompt 0", "prompt 1")
    assert len(batches[1][0][2]) == 8
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    found = {(cell["concurrency"], cell["policy"]): cell for cell in summary["cells"]}
    cell = found[8, RULE]
    assert (cell["requests"], cell["tokens"], cell["throughput"]) == (16, 160, 160.0)
    assert (cell["drafts"], cell["drafted"], cell["accepted"], cell["identical"]) == (16, 32, 16, 16)
    assert cell["vs_none"] == {"value": 2.0, "low": 2.0, "high": 2.0}
    assert cell["vs_host"]["value"] == 4.0
    assert cell["first_token"] == {"median": 0.05, "p99": 0.05}
    assert cell["per_token"]["median"] == pytest.approx(0.45 / 9)
    assert f"| 8 | `{RULE}` | 160.0 | 2.00 (2.00-2.00) |" in (tmp_path / "run" / "report.md").read_text()
    assert (tmp_path / "run" / "throughput.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert f"{RULE} against none: not clear at 1 (2.00), not clear at 8 (2.00)." in printed
    assert "12/12 batches" in printed


def test_ctrl_c_and_the_same_command_again(echo, monkeypatch, capsys):
    monkeypatch.setattr(echo, "stop_after", 3 + 3 + 2)  # within the second batch
    assert run() == 130
    monkeypatch.setattr(echo, "stop_after", None)
    assert run() == 0
    assert len(echo.clients[1].asked) == 3 + 9  # the batch that was under way again, for all of them
    assert "9/9 batches" in capsys.readouterr().out
    assert run() == 0
    assert len(echo.clients) == 2  # no server is started for nothing
    assert run("--max-new-tokens", "7") == 2
    assert "max_new_tokens was 32, is 7" in capsys.readouterr().err


def test_other_answers_are_counted(echo, monkeypatch, tmp_path):
    monkeypatch.setattr(echo, "wrong", "host")
    assert run() == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {cell["identical"] for cell in summary["cells"] if cell["policy"] == "host"} == {0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "svipp"], "Did you mean svip"),
        (["--policies", "plain"], "expected a rule"),
        (["--prompts", "mtbench"], "did you mean 'mt_bench'"),
        (["--model-path", "somewhere"], "--model-path and --draft-path together"),
        (["--out", "/proc/nowhere"], "choose another --out"),
    ],
)
def test_mistakes_end_in_one_sentence(echo, capsys, arguments, message):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not echo.clients


@pytest.mark.parametrize("text", ["0", "1,,4", "many", "-1"])
def test_concurrency_is_checked(echo, capsys, text):
    with pytest.raises(SystemExit):
        run(f"--concurrency={text}")
    assert "argument --concurrency: expected" in capsys.readouterr().err


def test_a_server_that_dies_at_the_start_shows_its_log(echo, monkeypatch, capsys):
    dead = "import sys; print('no such model'); sys.exit(3)"
    monkeypatch.setattr(
        vllm_engine,
        "launch",
        lambda models, policy, port: launch(dead if policy == "host" else HEALTHY, port),
    )
    assert run() == 2
    error = capsys.readouterr().err
    assert "the server for host to run, found it ended with status 3" in error
    assert "no such model" in error


def batches(ratios):
    """Answers of ``none`` and one rule, whose single batches have these ratios of throughput."""

    def record(seconds):
        return {
            "concurrency": 1,
            "seconds": seconds,
            "tokens": [1],
            "first_token": [seconds],
            "latency": [seconds],
            "texts": ["a"],
            "drafts": 0,
            "drafted": 0,
            "accepted": 0,
        }

    return {
        "none": {i: record(1.0) for i in range(len(ratios))},
        RULE: {i: record(1 / ratio) for i, ratio in enumerate(ratios)},
    }


def test_spread():
    """Of few batches the least and the greatest, of more a bootstrap, of one none that says anything."""
    few = cells(batches([0.5, 1.0, 0.8]))[1]
    assert (few["spread"], few["vs_none"]["low"], few["vs_none"]["high"]) == ("least and greatest", 0.5, 1.0)
    assert (few["vs_host"], few["per_token"], outcome(few, "vs_none")) == (None, None, "not clear")
    many = cells(batches([0.5, 1.0] * 10))[1]
    assert many["spread"] == "95% bootstrap"
    assert 0.5 < many["vs_none"]["low"] < many["vs_none"]["value"] == pytest.approx(2 / 3)
    assert many["vs_none"]["high"] < 1
    assert outcome(many, "vs_none") == "slower"
    assert outcome(cells(batches([1.5, 1.2, 1.1, 1.3, 1.4]))[1], "vs_none") == "faster"
    assert outcome(cells(batches([1.5, 1.2, 1.1, 1.3]))[1], "vs_none") == "not clear"
    one = cells(batches([0.5]))
    assert headlines(one) == [f"{RULE} against none: not clear at 1 (0.50)."]
