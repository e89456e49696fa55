"""The Hugging Face adapter: policies that misbehave and calls that are cut short."""

import gc

import pytest
from assisted import footprint, generate
from broken import FAULTS, Broken
from transformers import Cache
from transformers.generation import CandidateGenerator

from svip_adapters import (
    Fixed,
    LengthPolicy,
    UnsupportedHostError,
    patch_transformers,
)
from svip_adapters.testing import RecordingPolicy


@pytest.mark.parametrize(("method", "answer", "error", "message"), FAULTS)
def test_the_error_reaches_the_user_and_the_model_stays_usable(chains, method, answer, error, message):
    plain = generate(chains.target)
    before = footprint(chains.draft)
    with patch_transformers(chains.draft, policy=Broken(method, answer)):
        with pytest.raises(error, match=message):
            generate(chains.target, chains.draft)
        assert generate(chains.target, chains.draft) == plain
    assert footprint(chains.draft) == before
    assert generate(chains.target, chains.draft) == plain


def test_an_error_while_drafting_leaves_an_early_exit_model_whole(tiny_llama):
    """The host cuts the model's layers while it drafts, and would not put them back."""
    target = tiny_llama(layers=2)
    with (
        patch_transformers(target, policy=Broken("stop", RuntimeError("mine"))),
        pytest.raises(RuntimeError, match="mine"),
    ):
        generate(target, new=8, assistant_early_exit=1)
    assert target.config.num_hidden_layers == 2


def test_a_call_that_was_aborted_in_the_middle(chains):
    class Streamer:
        calls = 0

        def put(self, ids):
            self.calls += 1
            if self.calls == 4:
                raise OSError("closed")

        def end(self): ...

    policy = RecordingPolicy(Fixed(2))
    with patch_transformers(chains.draft, policy=policy):
        with pytest.raises(OSError, match="closed"):
            generate(chains.target, chains.draft, streamer=Streamer())
        assert generate(chains.target, chains.draft) == generate(chains.target)
    assert policy.begins == 2


def test_the_drafts_cache_is_freed_when_the_call_ends(chains):
    """By reference counts alone: a cache that waits for the garbage collector is memory on a GPU."""

    def alive():
        return [thing for thing in gc.get_objects() if issubclass(type(thing), (CandidateGenerator, Cache))]

    gc.collect()
    gc.disable()
    try:
        before = alive()
        with patch_transformers(chains.draft):
            generate(chains.target, chains.draft)
            left = {id(thing) for thing in alive()} - {id(thing) for thing in before}
    finally:
        gc.enable()
    assert not left


def test_a_draft_whose_logits_cannot_be_seen(chains):
    with patch_transformers(chains.draft):
        chains.draft._forward_hooks.clear()
        with pytest.raises(UnsupportedHostError, match="a draw without one"):
            generate(chains.target, chains.draft)


def test_one_call_at_a_time(chains):
    class Reentrant(LengthPolicy):
        def stop(self, step):
            generate(chains.target, chains.draft)
            return step.entropy < 0

    with (
        patch_transformers(chains.draft, policy=Reentrant()),
        pytest.raises(UnsupportedHostError, match="one generate"),
    ):
        generate(chains.target, chains.draft)
