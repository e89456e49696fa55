"""Every rule on a real vLLM engine: greedy answers are the engine's own, counts add up, revert restores."""

import gc
from types import SimpleNamespace

import pytest
import torch
from broken import FAULTS, Broken
from rules import RULES

from svip_adapters import LengthPolicy, PatchError, parse_policy, patch_vllm
from svip_adapters.testing import RecordingPolicy, ScriptedPolicy

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """(llm, prompts, answers): an engine that drafts 5 tokens, and what one without a draft answers."""
    from vllm_engines import answer, prompts, save_pair, start

    target, draft = save_pair(tmp_path_factory.mktemp("pair"))
    asked = prompts()
    plain = start(target)
    answers = answer(plain, asked)
    del plain
    gc.collect()
    return SimpleNamespace(llm=start(target, draft), prompts=asked, answers=answers)


@pytest.fixture
def answer():
    from vllm_engines import answer

    return answer


@pytest.fixture
def logged():
    from vllm_engines import logged

    with logged() as records:
        yield records


class Recording(RecordingPolicy):
    """One that a copy for a request is, too."""

    def __deepcopy__(self, memo):
        return self


class Uneven(LengthPolicy):
    """Stops each request at another length, by what it has drawn."""

    def stop(self, step):
        return step.drawn % 3 == 0


def test_the_host_itself_is_lossless(engine, answer):
    assert answer(engine.llm, engine.prompts) == engine.answers
    assert len({len(ids) for ids in engine.answers}) > 4


@pytest.mark.parametrize(
    "rule", [*RULES, "fixed:0", "table:1=4,3=1,by=batch_size", "rate_optimal", "test_vllm:Uneven"]
)
def test_answers_are_the_host_s_own(engine, answer, rule):
    with patch_vllm(engine.llm, policy=parse_policy(rule)) as patch:
        assert answer(engine.llm, engine.prompts) == engine.answers
        each = list(patch.requests.values())
    total = patch.stats
    assert len(each) == len(engine.prompts)
    for count in ("rounds", "drafted", "accepted", "early_stops"):
        assert sum(getattr(one, count) for one in each) == getattr(total, count)
    assert total.accepted <= total.drafted
    assert total.rounds + total.accepted >= sum(map(len, engine.answers)) - len(engine.prompts)
    assert total.draft_steps <= sum(one.draft_steps for one in each)
    assert max(total.lengths) <= 5


@pytest.mark.parametrize("by", ["plan", "stop"])
@pytest.mark.parametrize("before", [False, True])
def test_drafts_are_as_long_as_a_script_says(engine, answer, by, before):
    policy = Recording(ScriptedPolicy([2, 0, 5, 1], by=by, stops_before=before))
    with patch_vllm(engine.llm, policy=policy) as patch:
        answer(engine.llm, engine.prompts[:1], max_tokens=60, min_tokens=60)
    *drafted, _ = [outcome.drafted for outcome in policy.outcomes]  # the last is cut by the answer's end
    assert len(drafted) > 8
    assert drafted == [(2, 5, 1)[i % 3] for i in range(len(drafted))]
    assert 0 in patch.stats.lengths
    assert [context.remaining for context in policy.contexts] == sorted(
        (context.remaining for context in policy.contexts), reverse=True
    )


def test_each_request_stops_by_itself_and_steps_are_shared(engine, answer):
    with patch_vllm(engine.llm, policy=Uneven()) as patch:
        assert answer(engine.llm, engine.prompts) == engine.answers
    assert len(patch.stats.lengths) >= 4
    assert patch.stats.draft_steps < patch.stats.drafted


def test_a_learning_rule_has_one_state_a_request(engine, answer):
    seen = []

    class Learns(LengthPolicy):
        stateless = False

        def __init__(self):
            self.count = None

        def begin(self):
            assert self.count is None
            self.count = 0
            seen.append(self)

        def stop(self, step):
            assert step.count == 1
            self.count += 1
            return torch.zeros(1, dtype=torch.bool)

        def __deepcopy__(self, memo):
            return Learns()

    with patch_vllm(engine.llm, policy=Learns()) as patch:
        assert answer(engine.llm, engine.prompts) == engine.answers
        answer(engine.llm, engine.prompts[:1])
    assert len({id(policy) for policy in seen}) == len(engine.prompts) + 1
    assert not patch._requests._live or len(patch._requests._live) <= 1  # the last goes with the next step


def test_revert_restores_and_a_second_patch_is_refused(engine):
    from vllm_engines import runner

    host = runner(engine.llm)
    before = dict(vars(host)), dict(vars(host.drafter))
    patch = patch_vllm(engine.llm, 0.3)
    with pytest.raises(PatchError, match="patched already"):
        patch_vllm(engine.llm, 0.3)
    patch.revert()
    assert [set(vars(host)), set(vars(host.drafter))] == [set(b) for b in before]
    assert all(vars(host)[name] is before[0][name] for name in before[0])


@pytest.mark.parametrize(
    ("method", "given", "error", "message"), [f for f in FAULTS if f[2] is not KeyboardInterrupt]
)
def test_a_broken_policy_is_logged_once_and_taken_off(engine, answer, logged, method, given, error, message):
    patch = patch_vllm(engine.llm, policy=Broken(method, given))
    assert answer(engine.llm, engine.prompts) == engine.answers
    assert not patch.active
    (record,) = [record for record in logged if record.levelname == "ERROR"]
    assert isinstance(record.exc_info[1], error)
    assert "Broken" in record.getMessage()
    assert "off from here on" in record.getMessage()
    with patch_vllm(engine.llm, 0.3):  # and the runner can be patched again
        assert answer(engine.llm, engine.prompts[:2]) == engine.answers[:2]


def test_eos_ends_no_draft_where_it_is_ignored(engine, answer):
    with patch_vllm(engine.llm, policy=parse_policy("fixed:5")) as patch:
        answers = answer(engine.llm, engine.prompts, ignore_eos=True, max_tokens=40)
    assert any(2 in ids[:-1] for ids in answers)  # what would have ended some
    short = sum(patch.stats.lengths[n] for n in range(5))
    assert short <= 5 * len(answers)  # near the end, where there is no room


def test_an_aborted_request_leaves_nothing_behind(engine, answer):
    from vllm import SamplingParams

    core = engine.llm.llm_engine
    with patch_vllm(engine.llm, policy=parse_policy("heuristic")) as patch:
        for name in ("stays", "goes"):
            core.add_request(name, engine.prompts[0], SamplingParams(temperature=0, max_tokens=10))
        for _ in range(3):
            core.step()
        core.abort_request(["goes"])
        done = []
        while core.has_unfinished_requests():
            done += [output for output in core.step() if output.finished]
        (output,) = [one for one in done if one.request_id.startswith("stays")]
        assert list(output.outputs[0].token_ids) == engine.answers[0]
        answer(engine.llm, engine.prompts[:1])
        assert len(patch._requests._live) == 1
        assert len(patch.requests) == 3
