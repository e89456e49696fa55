"""The Hugging Face adapter: other ways to generate, each of which works or is refused."""

import copy

import pytest
import torch
from assisted import PROMPT, generate
from transformers import GenerationConfig

from svip_adapters import (
    SVIP,
    UnsupportedHostError,
    parse_policy,
    patch_transformers,
)
from svip_adapters.testing import RecordingPolicy, ScriptedPolicy


def test_encoder_decoder():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, eos_token_id=None
    )
    config.decoder_start_token_id, config.pad_token_id = 0, 0
    target = T5ForConditionalGeneration(config).eval()
    draft = copy.deepcopy(target)
    plain = target.generate(PROMPT, max_new_tokens=12, do_sample=False)
    with patch_transformers(draft, policy=ScriptedPolicy([3, 1])) as patch:
        assert torch.equal(
            target.generate(PROMPT, assistant_model=draft, max_new_tokens=12, do_sample=False), plain
        )
    assert patch.stats.lengths.keys() >= {1, 3}


@pytest.mark.parametrize("name", ["fixed:3", "svip:stops_before=True"])
def test_early_exit_drafts_with_the_patched_target_itself(tiny_llama, name):
    target = tiny_llama(layers=2)
    plain = generate(target, new=12)
    with patch_transformers(target, policy=parse_policy(name)) as patch:
        assert generate(target, new=12, assistant_early_exit=1) == plain
        assert generate(target, new=12) == plain
    assert patch.stats.draft_steps > 0
    assert target.config.num_hidden_layers == 2


def tokenizers():
    """Two word-level tokenizers with the same words under other ids, of different size."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [f"w{i}" for i in range(44)]
    for vocabulary in (["<unk>", *words, "x", "y", "z"], ["<unk>", *reversed(words), "q"]):
        ids = {word: i for i, word in enumerate(vocabulary)}
        backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        yield PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<unk>")


@pytest.mark.parametrize("do_sample", [False, True])
def test_different_tokenizers(tiny_llama, do_sample):
    names = dict(zip(("tokenizer", "assistant_tokenizer"), tokenizers(), strict=True))
    target, draft = tiny_llama(), tiny_llama(vocab_size=46)
    before = SVIP(stops_before=True)
    with patch_transformers(draft, policy=before), pytest.raises(UnsupportedHostError, match="taken back"):
        generate(target, draft, do_sample=do_sample, **names)
    policy = RecordingPolicy(ScriptedPolicy([3, 1]))
    with patch_transformers(draft, policy=policy) as patch:
        ids = generate(target, draft, new=12, do_sample=do_sample, **names)
    assert len(ids) == 12
    assert do_sample or ids == generate(target, new=12)
    assert patch.stats.drafted > 0
    assert patch.stats.accepted + patch.stats.rounds == 12


def test_batches_are_refused(chains):
    prompts = PROMPT.repeat(2, 1)
    with patch_transformers(chains.draft), pytest.raises(UnsupportedHostError, match="found a batch of 2"):
        chains.target.generate(prompts, assistant_model=chains.draft, max_new_tokens=4, do_sample=False)


@pytest.mark.parametrize(
    ("kwargs", "found"),
    [
        ({"num_beams": 2}, "beam_search"),
        ({"num_beams": 2, "do_sample": True}, "beam_sample"),
        ({"prompt_lookup_num_tokens": 3}, "PromptLookupCandidateGenerator"),
        ({"assistant_early_exit": 1}, "EarlyExitCandidateGenerator"),
    ],
)
def test_modes_that_would_ignore_the_draft_are_refused(llamas, kwargs, found):
    with patch_transformers(llamas.draft), pytest.raises(UnsupportedHostError, match=found):
        generate(llamas.target, llamas.draft, new=4, **kwargs)
    with patch_transformers(llamas.target):
        generate(llamas.target, new=4, **{**kwargs, "assistant_early_exit": None})  # as a target it may


def test_a_draft_call_from_elsewhere_is_refused(chains):
    config = GenerationConfig(max_new_tokens=3, do_sample=False)
    plain = chains.draft.generate(PROMPT, generation_config=config)
    with patch_transformers(chains.draft) as patch:
        assert torch.equal(chains.draft.generate(PROMPT, generation_config=config), plain)
        config.is_assistant = True
        with pytest.raises(UnsupportedHostError, match="without its policy"):
            chains.draft.generate(PROMPT, generation_config=config)
    assert patch.stats.rounds == 0
