"""check_policy passes every rule shipped and catches each way of breaking the contract."""

import pytest
import torch

from svip_adapters import LengthPolicy, Outcome, PolicyError, RoundContext, parse_policy
from svip_adapters.policies import POLICIES
from svip_adapters.policy import DraftStep
from svip_adapters.testing import RecordingPolicy, ScriptedPolicy, check_policy

SHIPPED = [
    "svip",
    "svip:threshold=0.3,scale=1.0",
    "svip:stops_before=true",
    "fixed:0",
    "fixed:5",
    "heuristic",
    "heuristic:start=1,max_length=3",
    "confidence",
    "cumulative",
    "adaedl",
    "adaedl:stops_before=true",
    "table:1=5,8=3,32=0",
    "table:0=2,500=9,by=context_length",
    "any:svip+confidence:threshold=0.6+heuristic",
    "any:svip:stops_before=true+adaedl:stops_before=true",
    "all:fixed:3+svip+cumulative",
    "bandit:fixed:1+svip+heuristic",
    "svip_fitted",
    "rate_optimal",
    "rate_optimal:draft_cost=0.2,verify_cost=0.05",
]


@pytest.mark.parametrize("text", SHIPPED)
def test_shipped_rules_pass(text):
    check_policy(parse_policy(text))
    check_policy(lambda: parse_policy(text))


def test_every_rule_is_in_the_list_above():
    assert {text.partition(":")[0] for text in SHIPPED} == set(POLICIES)


@pytest.mark.parametrize(
    "inner", [ScriptedPolicy([0, 3, 1]), ScriptedPolicy([2], by="plan"), parse_policy("svip")]
)
def test_helpers_pass(inner):
    check_policy(inner)
    check_policy(RecordingPolicy(inner))


class Good(LengthPolicy):
    """The example in LengthPolicy's docstring."""

    def stop(self, step):
        return step.top1_prob < 0.5


def test_a_class_is_a_factory():
    check_policy(Good)


def breaking(stop=None, **attributes):
    """A rule that is Good but for what is passed."""
    if stop is not None:
        attributes["stop"] = stop
    return type("Bad", (Good,), attributes)


def _in_place(self, step):
    step.logits[:, 0] = 0
    return step.top1_prob < 0.5


def _in_place_path(self, step):
    return step.path_logp.sub_(1.0) < -3


def _moody(self, step):
    self.calls = getattr(self, "calls", 0) + 1
    return step.entropy > self.calls


def _learn(self, outcome):
    self.max_length = 7


HOST_READS = {
    "item": lambda h: torch.tensor([x.item() > 0.6 for x in h]),
    "bool": lambda h: torch.tensor([bool(x > 0.6) for x in h]),
    "float": lambda h: torch.tensor([float(x) > 0.6 for x in h]),
    "tolist": lambda h: torch.tensor([x > 0.6 for x in h.tolist()]),
    "numpy": lambda h: torch.from_numpy(h.numpy() > 0.6),
    "cpu": lambda h: (h.cpu() > 0.6).to(h.device),
    "nonzero": lambda h: torch.zeros_like(h).index_fill(0, (h > 0.6).nonzero()[:, 0], 1.0).bool(),
    "boolean index": lambda h: h[h > -1] > 0.6,
    "tensor on the host": lambda h: h > torch.tensor([0.6]),
    "answer on the host": lambda h: torch.zeros(len(h)).bool(),
}


@pytest.mark.parametrize("read", HOST_READS.values(), ids=HOST_READS)
def test_host_reads_are_caught(read):
    with pytest.raises(PolicyError, match=r"read no value back|on meta"):
        check_policy(breaking(lambda self, step: read(step.entropy)))


BROKEN = {
    "python bool": (breaking(lambda self, step: True), "found bool True"),
    "float answer": (breaking(lambda self, step: step.entropy), "torch.float32"),
    "one answer for all": (breaking(lambda self, step: (step.entropy > 1).all()), r"found \(\), torch.bool"),
    "answer a token": (breaking(lambda self, step: step.logits > 1), r"found \(1, 64\)"),
    "rows averaged": (breaking(lambda self, step: step.entropy - step.entropy.mean() > 0), "that row only"),
    "first row decides": (
        breaking(lambda self, step: (step.entropy[:1] > 1).expand(step.entropy.shape)),
        "row only",
    ),
    "one row only": (breaking(lambda self, step: step.logits.reshape(64).amax().reshape(1) < 1), "every N"),
    "half precision": (
        breaking(lambda self, step: step.logits @ torch.ones(64) > 1),
        "every N and float dtype",
    ),
    "writes logits": (breaking(_in_place), "leave step.logits as it is"),
    "writes the path": (breaking(_in_place_path), "leave step.path_logp as it is"),
    "goes on at NaN": (
        breaking(lambda self, step: step.logits.float().softmax(-1).amax(-1) < 0.5),
        "row of NaN",
    ),
    "peeks before the draw": (
        breaking(lambda self, step: step.drawn_prob < 0.5, stops_before=True),
        "no drawn token",
    ),
    "hidden state": (breaking(_moody), "that row only|at all times"),
    "stateless that learns": (
        breaking(verified=_learn, plan=lambda self, context: self.max_length),
        "all times",
    ),
    "random": (
        breaking(lambda self, step: torch.rand(len(step.logits)) < 0.5),
        "that row only|all times|read no",
    ),
    "float plan": (breaking(plan=lambda self, context: 3.0), "found 3.0"),
    "bool plan": (breaking(plan=lambda self, context: True), "found True"),
    "negative plan": (breaking(plan=lambda self, context: context.remaining - 1), "found -1"),
    "plan above max_length": (
        breaking(plan=lambda self, context: context.remaining + 1),
        "let max_length be",
    ),
    "no max_length": (breaking(max_length=None), "max_length"),
    "plan without context": (breaking(plan=lambda self: 5), "signatures of LengthPolicy"),
    "verified divides by zero": (
        breaking(verified=lambda self, outcome: setattr(self, "r", outcome.drafted / outcome.accepted)),
        "ZeroDivisionError",
    ),
}


@pytest.mark.parametrize(("policy", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_rules_are_caught(policy, message):
    with pytest.raises(PolicyError, match=message) as caught:
        check_policy(policy)
    assert str(caught.value).startswith("Bad: expected ") or "Bad expects" in str(caught.value)


def test_other_objects_are_refused():
    with pytest.raises(PolicyError, match="Derive your class from"):
        check_policy(dict)


def _draft(policy, rounds):
    """How long a chain host would draft, round after round."""
    lengths = []
    for _ in range(rounds):
        plan, depth = policy.plan(RoundContext(context_length=9, remaining=99)), 0
        while depth < plan:
            step = DraftStep(torch.zeros(1, 8), depth=depth, drawn=torch.zeros(1, dtype=torch.long))
            stop = policy.stop(step).item()
            depth += not (stop and policy.stops_before)
            if stop:
                break
        lengths.append(depth)
    return lengths


@pytest.mark.parametrize("how", [{}, {"by": "plan"}, {"stops_before": True}], ids=str)
def test_scripted_policy_drafts_its_lengths(how):
    policy = ScriptedPolicy([3, 0, 1], **how)
    assert _draft(policy, 5) == [3, 0, 1, 3, 0]
    policy.begin()
    assert _draft(policy, 2) == [3, 0]


@pytest.mark.parametrize("lengths", [[], [2, -1], [1.5]])
def test_scripted_policy_refuses(lengths):
    with pytest.raises(PolicyError, match="ScriptedPolicy expects"):
        ScriptedPolicy(lengths)


def test_recording_policy_keeps_what_the_host_sent():
    policy = RecordingPolicy(ScriptedPolicy([2]))
    policy.begin()
    assert _draft(policy, 1) == [2]
    policy.verified(Outcome(drafted=2, accepted=1))
    assert policy.begins == 1
    assert policy.plans == [3]
    assert policy.contexts[0].context_length == 9
    assert [step.depth for step in policy.steps] == [0, 1]
    assert [step.stopped.tolist() for step in policy.steps] == [[False], [True]]
    torch.testing.assert_close(policy.steps[0].entropy, torch.tensor([8.0]).log())
    assert policy.outcomes == [Outcome(drafted=2, accepted=1)]
