"""Every embedded host under every rule: lossless, reversible, and usable after a policy that misbehaves."""

import copy

import pytest
from broken import FAULTS, Broken
from embedded import EMBEDDED
from rules import RULES

from svip_adapters import Fixed, PatchError, PolicyError, UnsupportedHostError, parse_policy


@pytest.fixture(scope="module", params=EMBEDDED)
def host(request):
    return EMBEDDED[request.param]


@pytest.fixture
def models(host):
    return host.make()


@pytest.fixture(scope="module")
def greedy(host):
    """The target alone."""
    target = host.target(host.make())
    output = target.generate(host.prompt, max_new_tokens=host.new, do_sample=False, eos_token_id=None)
    return output[0, host.prompt.shape[1] :].tolist()


@pytest.mark.parametrize("rule", RULES)
def test_greedy_output_is_the_targets_own(host, models, greedy, rule):
    assert host.generate(models) == greedy
    with host.patch(models, policy=parse_policy(rule)) as patch:
        for new in (host.new, 7, 1):
            assert host.generate(models, new) == greedy[:new]
    assert patch.stats.rounds > 5
    assert patch.stats.accepted > 0


def test_no_plan_drafts_less_than_one_token(host, models, greedy):
    with host.patch(models, policy=Fixed(0)) as patch:
        assert host.generate(models) == greedy
    assert set(patch.stats.lengths) == {1}


def test_two_models_have_a_policy_each(host, models, greedy):
    other, alone = host.make(), host.make()
    with host.patch(models, policy=Fixed(2)) as first, host.patch(other, policy=Fixed(3)) as second:
        assert host.generate(models) == host.generate(other) == host.generate(alone) == greedy
    assert set(first.stats.lengths) == {2}
    assert set(second.stats.lengths) == {3}


@pytest.mark.parametrize(("method", "answer", "error", "message"), FAULTS)
def test_the_error_reaches_the_user_and_the_model_stays_usable(
    host, models, greedy, method, answer, error, message
):
    with host.patch(models, policy=Broken(method, answer)):
        with pytest.raises(error, match=message):
            host.generate(models)
        assert host.generate(models) == greedy
    assert host.generate(models) == greedy


def test_patching_twice_is_refused(host, models):
    patch = host.patch(models)
    with pytest.raises(PatchError, match="patched already"):
        host.patch(models)
    patch.revert()
    host.patch(models).revert()


def test_a_patched_model_is_not_copied(host, models):
    with host.patch(models), pytest.raises(UnsupportedHostError, match="the copy would share"):
        copy.deepcopy(host.patched(models))
    with host.patch(copy.deepcopy(models)) as patch:
        host.generate(models)
    assert patch.stats.rounds == 0


def test_a_threshold_and_a_policy_are_too_much(host, models):
    with pytest.raises(PolicyError, match="found both"):
        host.patch(models, threshold=0.3, policy=Fixed(2))
    host.patch(models).revert()
