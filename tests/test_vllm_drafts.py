"""vLLM on other engines: EAGLE-3, preemption, steps without a draft, and sampling, which stays exact."""

import gc
import json

import pytest
import torch
from laws import TEMPERATURE, TOKENS, p_value, tables
from tiny import save_tokenizer, tiny_config
from transformers import LlamaForCausalLM

from svip_adapters import LengthPolicy, parse_policy, patch_vllm

pytestmark = pytest.mark.vllm


def save_eagle3(folder, target, vocabulary=24):
    """A random EAGLE-3 head over a part of the vocabulary, in its authors' format."""
    from safetensors.torch import save_file

    size, wide, torch_size = target.hidden_size, target.intermediate_size, target.vocab_size
    shapes = {
        "fc.weight": (size, 3 * size),
        "lm_head.weight": (vocabulary, size),
        "embed_tokens.weight": (torch_size, size),
        **{f"midlayer.self_attn.{name}_proj.weight": (size, 2 * size) for name in "qkv"},
        "midlayer.self_attn.o_proj.weight": (size, size),
        **{f"midlayer.mlp.{name}_proj.weight": (wide, size) for name in ("gate", "up")},
        "midlayer.mlp.down_proj.weight": (size, wide),
    }
    draw = torch.Generator().manual_seed(0)
    state = {name: 0.4 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    norms = ("norm", "midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm")
    state |= {f"{name}.weight": torch.ones(size) for name in norms}
    kept = torch.randperm(torch_size, generator=draw)[:vocabulary].sort().values
    state["d2t"] = kept - torch.arange(vocabulary)
    state["t2d"] = torch.zeros(torch_size, dtype=torch.bool).index_fill(0, kept, True)
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    config = {**target.to_dict(), "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps({**config, "draft_vocab_size": vocabulary}, default=str))
    return folder


def test_eagle3(tmp_path):
    from vllm_engines import VOCABULARY, WIDE, answer, prompts, start

    torch.manual_seed(0)
    config = tiny_config(VOCABULARY, num_hidden_layers=8, tie_word_embeddings=False, **WIDE)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "target")
    save_tokenizer(VOCABULARY, tmp_path / "target")
    head = save_eagle3(tmp_path / "head", config)
    plain = start(tmp_path / "target")
    expected = answer(plain, prompts(8))
    del plain
    gc.collect()
    llm = start(tmp_path / "target", head, 4, speculative_config={"method": "eagle3", "model": str(head)})
    drafted = {}
    for rule in ("fixed:4", "svip:threshold=0.4", "rate_optimal", "cumulative:0.3"):
        with patch_vllm(llm, policy=parse_policy(rule)) as patch:
            assert answer(llm, prompts(8)) == expected
        drafted[rule] = patch.stats.drafted
    assert drafted["svip:threshold=0.4"] < drafted["fixed:4"]


def test_preempted_requests_come_back_with_a_new_state(tmp_path):
    from vllm_engines import answer, prompts, save_pair, start

    target, draft = save_pair(tmp_path)
    options = {"max_tokens": 90, "min_tokens": 90}
    plain = start(target)
    expected = answer(plain, prompts(4), **options)
    del plain
    gc.collect()
    # Room for two of the four answers only.
    llm = start(target, draft, block_size=32, num_gpu_blocks_override=9)
    begun = []

    class Counts(type(parse_policy("heuristic"))):
        def begin(self):
            begun.append(1)
            super().begin()

    with patch_vllm(llm, policy=Counts()) as patch:
        assert answer(llm, prompts(4), **options) == expected
        assert len(patch.requests) == 4
    assert len(begun) > 4


def test_a_step_in_which_the_host_cannot_draft_is_no_round(tmp_path):
    """One request is nearly as long as the draft may read: vLLM then has zeros verified, of every request."""
    from vllm_engines import answer, save_pair, start

    target, draft = save_pair(tmp_path)
    llm = start(target, draft, max_model_len=64)
    asked = [{"prompt_token_ids": [3 + i % 50 for i in range(n)]} for n in (5, 50)]
    plans, heard = [], []

    class Two(LengthPolicy):
        def plan(self, context):
            plans.append(context)
            return 2

        def stop(self, step):
            return step.entropy < 0

        def verified(self, outcome):
            heard.append(outcome.drafted)

    expected = answer(llm, asked, max_tokens=13, min_tokens=13)
    with patch_vllm(llm, policy=Two()) as patch:
        assert answer(llm, asked, max_tokens=13, min_tokens=13) == expected
    assert set(heard) == {1, 2}  # not the host's zeros, five of them
    assert patch.stats.drafted == sum(heard)
    assert len(plans) > patch.stats.rounds  # some rounds' end was not told


def save_chain(folder, table):
    """A Llama whose next token depends on the last one only, by the logits in ``table`` (V, V)."""
    from vllm_engines import WIDE

    model = LlamaForCausalLM(tiny_config(TOKENS, num_hidden_layers=1, tie_word_embeddings=False, **WIDE))
    size = model.config.hidden_size
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(float(weight.dim() == 1))
        model.model.embed_tokens.weight.copy_(torch.eye(TOKENS, size))
        model.lm_head.weight.copy_((torch.eye(size, TOKENS) @ table / size**0.5).T)
    model.save_pretrained(folder)
    save_tokenizer(TOKENS, folder)
    return folder


@pytest.fixture
def repaired(monkeypatch):
    """vLLM's CPU build hands on uninitialised temperatures; third_party/README.md has the report."""
    from vllm.utils import cpu_triton_utils

    def expand(output, values, ends, old, new, MAX_NUM_TOKENS=None):
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        output[: int(ends[-1])] = torch.where(values == old, new, values).repeat_interleave(counts)

    monkeypatch.setattr(cpu_triton_utils, "_expand_kernel_impl", expand)


def transitions(llm, draws):
    """(V, V) counts of successive tokens."""
    from vllm import SamplingParams

    counts = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    params = SamplingParams(temperature=TEMPERATURE, max_tokens=100, ignore_eos=True)
    while counts.sum() < draws:
        asked = [{"prompt_token_ids": [i % TOKENS]} for i in range(8)]
        for i, output in enumerate(llm.generate(asked, params, use_tqdm=False)):
            tokens = torch.tensor([i % TOKENS, *output.outputs[0].token_ids])
            ones = torch.ones(len(tokens) - 1, dtype=torch.float64)
            counts.index_put_((tokens[:-1], tokens[1:]), ones, accumulate=True)
    return counts


@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
def test_sampling_is_exact(tmp_path, repaired, method):
    from vllm_engines import start

    target, draft = map(save_chain, (tmp_path / "target", tmp_path / "draft"), tables())
    drafting = {"method": "draft_model", "model": str(draft), "draft_sample_method": method}
    llm = start(target, draft, speculative_config=drafting)
    for rule in (None, "svip:0.5", "svip:threshold=0.5,stops_before=True", "confidence:0.6"):
        patch = patch_vllm(llm, policy=parse_policy(rule)) if rule else None
        assert p_value(transitions(llm, 4_000), tables()[0]) > 0.002, rule  # 0.01 for the eight together
        if patch:
            patch.revert()
            assert patch.stats.accepted > 0.3 * patch.stats.rounds
            assert len(patch.stats.lengths) > 2
