"""Real servers over HTTP, 32 clients at once: answers, aborts, metrics, and policies that fail."""

import dataclasses
import http.client
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from svip_adapters.evaluation.serving import vllm_engine
from svip_adapters.evaluation.serving.server import HOST, free_ports, running

pytestmark = pytest.mark.vllm
RULES = ("none", "svip:threshold=0.4", "vllm_faults:Raises", "vllm_faults:WrongShape")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """{rule: server}, eight requests at a time, of a tiny pair."""
    from vllm_engines import save_pair

    folder = tmp_path_factory.mktemp("servers")
    target, draft = save_pair(folder)
    models = vllm_engine.Models(
        target=str(target), draft=str(draft), dtype="float32", device="cpu", threads=1, drafted=5, clients=8,
        servers=len(RULES), arguments="--max-model-len 128",
    )  # fmt: skip
    launches = {}
    for rule, port in zip(RULES, free_ports(len(RULES)), strict=True):
        launch = vllm_engine.launch(models, rule, port)
        there = {"PYTHONPATH": str(Path(__file__).parent), "VLLM_CPU_KVCACHE_SPACE": "1"}
        launches[rule] = dataclasses.replace(launch, environment={**launch.environment, **there})
    with running(launches, folder / "logs", seconds=400) as up:
        yield up


def body(prompt, tokens, **options):
    request = {
        "model": vllm_engine.SERVED,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        **options,
    }
    return json.dumps(request).encode()


def complete(server, prompt, tokens):
    """Token ids of a greedy answer."""
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        body(prompt, tokens, return_token_ids=True),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


def break_off(server, prompt):
    """Ask for a long answer, read its beginning and hang up."""
    connection = http.client.HTTPConnection(HOST, int(server.url.rsplit(":", 1)[1]), timeout=120)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", body(prompt, 90, stream=True, ignore_eos=True), headers)
    connection.getresponse().read(20)
    connection.close()


def all_at_once(server, count=32, broken_off=0):
    """Answers to ``count`` prompts asked at once, some others being broken off meanwhile."""
    from vllm_engines import prompts

    asked = [one["prompt_token_ids"] for one in prompts(count)]
    with ThreadPoolExecutor(count + broken_off) as pool:
        gone = [pool.submit(break_off, server, asked[i]) for i in range(broken_off)]
        found = list(pool.map(lambda i: complete(server, asked[i], 10 + i), range(count)))
        for one in gone:
            one.result()
    return found


def metric(server, name):
    """Sum of a counter over its labels."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


@pytest.fixture(scope="module")
def expected(servers):
    return all_at_once(servers["none"])


def test_32_requests_at_once_some_broken_off(servers, expected):
    server = servers["svip:threshold=0.4"]
    assert all_at_once(server, broken_off=6) == expected
    assert all_at_once(server) == expected
    assert "ERROR" not in server.log.read_text()


def test_metrics_and_log(servers, expected):
    server = servers["svip:threshold=0.4"]
    assert all_at_once(server) == expected
    drafted = metric(server, "vllm:spec_decode_num_draft_tokens_total")
    assert metric(server, "svip:draft_length_sum") == drafted > 0
    rounds = metric(server, "vllm:spec_decode_num_drafts_total")
    assert metric(server, "svip:draft_length_count") == rounds
    assert 0 < metric(server, "svip:short_drafts_total") <= rounds
    assert drafted < 5 * rounds
    assert server.log.read_text().count("Draft length policy on: SVIP(threshold=0.4") == 1


def test_without_a_policy_nothing_is_said(servers, expected):
    assert "length policy" not in servers["none"].log.read_text()
    assert metric(servers["none"], "svip:short_drafts_total") == 0


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("vllm_faults:Raises", "RuntimeError: mine"),
        ("vllm_faults:WrongShape", "found torch.bool of shape (1,)"),
    ],
)
def test_a_policy_that_fails_harms_no_request(servers, expected, rule, found):
    server = servers[rule]
    assert all_at_once(server) == expected
    assert all_at_once(server) == expected
    log = server.log.read_text()
    assert log.count("it is off from here on") == 1
    assert log.count(found) == 1
    lengths = metric(server, "svip:draft_length_sum"), metric(server, "svip:draft_length_count")
    assert lengths[0] > 2 * lengths[1]  # vLLM's own length again
