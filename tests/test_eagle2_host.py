"""EAGLE in the benchmark: the embedded one's counts, options behind an @, the probe; upstream's weights."""

import io

import pytest
import torch
from bench_hosts import eagle2_host

from svip_adapters import LengthPolicy, PolicyError
from svip_adapters.evaluation import cli, paper
from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.policy_list import measured
from svip_adapters.evaluation.verdict import is_svip

Console = pytest.importorskip("rich.console").Console

PROMPT = [3, 7, 1, 5, 9, 11]
POLICIES = [
    "host",
    "host@depth=1,total_tokens=6",
    "svip:0.6",
    "svip:0.6@level_rule=best,max_depth=9",
    "fixed:2",
]


@pytest.fixture
def host():
    return eagle2_host()


def run(host, policy, temperature=0.0, new=20):
    host.check(policy)
    return host.generate(PROMPT, policy=policy, max_new_tokens=new, temperature=temperature, seed=1)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_plains_answer_and_counts_that_add_up(host, policy):
    plain = run(host, "plain")
    found = run(host, policy)
    assert found.ids == plain.ids
    assert sum(found.accept_lengths) == len(found.ids)
    assert len(found.accept_lengths) == len(found.draft_lengths) == found.target_forwards
    assert len(found.ids) - found.accepted in (found.target_forwards, found.target_forwards - 1)
    assert found.nodes_verified >= sum(found.draft_lengths)
    # A level that was drafted may have no node among the likeliest.
    assert found.draft_steps >= sum(found.draft_lengths)
    assert run(host, policy, temperature=1.0).ids == run(host, policy, temperature=1.0).ids


def test_options_hold_for_one_generation(host):
    before = host.draft.depth, host.draft.total_tokens
    small = run(host, "host@depth=1,total_tokens=6")
    assert set(small.draft_lengths[1:]) == {2}
    assert small.nodes_verified == 6 * (small.target_forwards - 1)
    assert (host.draft.depth, host.draft.total_tokens) == before


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        ("host@level_rule=best", BenchError, r"found 'level_rule=best' .* it takes: depth \(int\)"),
        ("svip@depth=x", BenchError, "found 'depth=x'"),
        ("svip@level_rule=worst", PolicyError, "level_rule to be one of"),
        ("host@total_tokens=0", BenchError, "total_tokens of at least 1"),
        ("plain@depth=3", BenchError, "it takes: none"),
    ],
)
def test_wrong_options_are_named(host, policy, error, message):
    with pytest.raises(error, match=message):
        host.check(policy)


def test_options_go_with_the_rule_before_them():
    found = measured("host@depth=3,total_tokens=20,svip:threshold=0.5@level_rule=best,fixed:2", "host")
    assert found == [
        "plain",
        "host",
        "host@depth=3,total_tokens=20",
        "svip:threshold=0.5@level_rule=best",
        "fixed:2",
    ]


def test_the_probe_is_what_the_layer_sees_when_it_drafts_one_token(host):
    ids = run(host, "plain", new=5).ids
    probed = host.probe(PROMPT, ids)
    model = host.model
    for i, (entropy, agrees) in enumerate(probed):
        context = torch.tensor([PROMPT + ids[:i]])
        with torch.inference_mode():
            features = model.base_model.model(context[:, :-1]).last_hidden_state
            estimates, _ = model.ea_layer(features, context[:, 1:])
            logits = model.base_model.lm_head(estimates[0, -1])
        expected = torch.distributions.Categorical(logits=logits).entropy()
        assert entropy == pytest.approx(float(expected), abs=1e-4)
        assert agrees == (int(logits.argmax()) == ids[i])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "eagle"], "expected --model-path, --ea-model-path with --host eagle, found none"),
        (["--model-path", "x"], "expected no path to weights with --host transformers, found x"),
    ],
)
def test_weights_go_with_the_host_that_takes_them(arguments, message, tmp_path, capsys):
    assert cli.main(["run", *arguments, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err


def test_the_papers_table_says_whose_it_is():
    console = Console(file=io.StringIO(), width=160)
    paper.print_paper(console)
    text = console.file.getvalue()
    assert "NOT measured here" in text
    for target in paper.TABLE_4:
        assert text.count(target) == 2


def test_an_option_makes_another_cell_of_a_rule(host):
    """With a state of its own; and still SVIP's, in the report."""
    for policy in ("heuristic", "heuristic@max_depth=9"):
        run(host, policy)
    assert len(set(map(id, host._tree._rules.values()))) == 2
    assert is_svip("svip@level_rule=best")
    host.check("test_eagle2_host:Mine@max_depth=3")


class Mine(LengthPolicy):
    def stop(self, step):
        return step.entropy > 1
