"""Tiny models: real ones (Llama, with attention and a cache) and Markov chains, whose law is known."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from tiny import store_random_texts, tiny_target

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_llama():
    """A function (like=None, noise=0.0, layers=1, vocab_size=48) -> random Llama, or one near another."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(like=None, noise=0.0, layers=1, vocab_size=48):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.5,
            max_position_embeddings=256,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        )
        model = LlamaForCausalLM(config).eval()
        model.lm_head.weight.data *= 3  # entropies on both sides of SVIP's limit
        if like is not None:
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for mine, theirs in zip(model.parameters(), like.parameters(), strict=True):
                    mine.copy_(theirs + noise * theirs.std() * torch.randn(mine.shape, generator=generator))
        return model

    return make


@pytest.fixture(scope="session")
def llamas(tiny_llama):
    """(target, draft): the draft is the target with noise on its weights."""
    target = tiny_llama()
    return SimpleNamespace(target=target, draft=tiny_llama(like=target, noise=0.05))


@pytest.fixture(scope="session")
def markov_chain():
    """A function (logits (V, V)) -> model that draws the next token from row logits[last token].

    It has a real cache and goes through all of ``generate``, at a tenth of a Llama's cost.
    """
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_outputs import CausalLMOutputWithPast

    names = {field.name for field in dataclasses.fields(CausalLMOutputWithPast)}
    cache = "cache" if "cache" in names else "past_key_values"  # renamed in 5.x

    class MarkovChain(LlamaForCausalLM):
        def __init__(self, logits):
            small = dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers"), 1)
            heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 1)
            tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
            super().__init__(LlamaConfig(vocab_size=len(logits), **small, **heads, **tokens))
            self.register_buffer("table", logits)

        def forward(self, input_ids, **kwargs):
            states = self.table.new_zeros(1, 1, input_ids.shape[1], 1)
            kwargs[cache].update(states, states, 0)
            return CausalLMOutputWithPast(logits=self.table[input_ids], **{cache: kwargs[cache]})

    return lambda logits: MarkovChain(logits).eval()


@pytest.fixture
def chains(markov_chain):
    """(target, draft): fresh chains over 8 tokens, from certain to unsure; greedily both count upwards,
    except that the draft skips a token after 2 and after 5."""
    generator = torch.Generator().manual_seed(0)
    likely = torch.diag(torch.tensor([7.0, 2.0, 6.0, 5.0, 6.0, 2.0, 7.0, 4.0]))
    logits = likely.roll(1, dims=1) + 0.3 * torch.randn(8, 8, generator=generator)
    draft = logits + 0.3 * torch.randn(8, 8, generator=generator)
    draft[[2, 5]] = draft[[2, 5]].roll(1, dims=1)
    return SimpleNamespace(target=markov_chain(logits), draft=markov_chain(draft))


@pytest.fixture(scope="session")
def target():
    """A tiny random target of 64 words, for the tests of training."""
    return tiny_target(64)


@pytest.fixture(scope="session")
def stored(target, tmp_path_factory):
    """What that target computes on random texts, stored for training; not to be written to."""
    return store_random_texts(target, tmp_path_factory.mktemp("states"))
