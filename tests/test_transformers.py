"""The Hugging Face adapter: what it drafts, what it counts, what it refuses, what it leaves behind."""

import copy
import gc
import importlib.metadata
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import svip_adapters.adapters as adapters
import torch
from transformers import Cache, GenerationConfig, GenerationMixin, LlamaModel
from transformers.generation import CandidateGenerator

from svip_adapters import (
    SVIP,
    Fixed,
    HostVersionError,
    LengthPolicy,
    PatchError,
    PolicyError,
    UnsupportedHostError,
    parse_policy,
    patch_transformers,
)
from svip_adapters.policies import POLICIES
from svip_adapters.testing import RecordingPolicy, ScriptedPolicy

PROMPT = torch.tensor([[3, 7, 1, 5]])
ARGUMENTS = {
    "all": "all:svip+confidence:0.6",
    "any": "any:svip+fixed:4",
    "confidence": "confidence:0.6",
    "cumulative": "cumulative:0.3",
    "fixed": "fixed:5",
    "table": "table:1=3,by=context_length",
}
NAMES = [ARGUMENTS.get(name, name) for name in POLICIES] + ["svip:stops_before=True", "fixed:0"]


def generate(target, draft=None, new=24, **kwargs):
    """New token ids only, greedy unless told."""
    torch.manual_seed(0)
    ids = target.generate(PROMPT, assistant_model=draft, max_new_tokens=new, **{"do_sample": False, **kwargs})
    return ids[0, PROMPT.shape[1] :].tolist()


def footprint(model):
    """Everything a patch could leave behind."""
    own = {name: value for name, value in vars(model).items() if not name.startswith("_")}
    seams = GenerationMixin._get_candidate_generator, GenerationConfig.get_generation_mode
    hooks = dict(model._forward_hooks), hasattr(model, "_svip_patch"), hasattr(model, "_svip_bridge")
    return own, seams, hooks, model.generation_config.to_dict(), model.generate.__func__


# -- what it drafts


@pytest.mark.parametrize("name", NAMES)
def test_greedy_output_is_that_of_the_target_alone(llamas, name):
    plain = generate(llamas.target)
    with patch_transformers(llamas.draft, policy=parse_policy(name)) as patch:
        assert generate(llamas.target, llamas.draft) == plain
    stats = patch.stats
    assert stats.accepted + stats.rounds == len(plain)
    assert sum(length * rounds for length, rounds in stats.lengths.items()) == stats.drafted
    assert sum(stats.lengths.values()) == stats.rounds
    assert 0 <= stats.wasted == stats.drafted - stats.accepted


@pytest.mark.parametrize("by", ["stop", "plan"])
@pytest.mark.parametrize("stops_before", [False, True])
def test_scripted_lengths_are_drafted_exactly(chains, by, stops_before):
    script = [3, 0, 1, 6, 2]
    policy = RecordingPolicy(ScriptedPolicy(script, by=by, stops_before=stops_before))
    with patch_transformers(chains.draft, policy=policy) as patch:
        for calls in (1, 2):
            generate(chains.target, chains.draft, new=40)
            assert policy.begins == calls
    told = iter(outcome.drafted for outcome in policy.outcomes)
    drafted, remaining = [], []
    for context in policy.contexts:
        remaining.append(context.remaining)
        if context.context_length == PROMPT.shape[1]:
            place = 0
        wanted = script[place % len(script)]
        drafted.append(min(wanted, context.remaining))
        if drafted[-1]:
            assert next(told) == drafted[-1]
        place += 1
    assert next(told, None) is None
    assert patch.stats.drafted == sum(drafted)
    assert min(remaining) > 0


def authors_svip(target, draft, ids, new):
    """Draft lengths of the authors' loop (eval_specbench.py), without caches or the adapter."""
    produced, lengths = 0, []
    while produced < new:
        room, drafted = min(40, new - produced - 1), ids
        while drafted.shape[1] - ids.shape[1] < room:
            q = draft(drafted, use_cache=False).logits[0, -1].softmax(-1)
            drafted = torch.cat([drafted, q.argmax().view(1, 1)], dim=1)
            if (0.15 * torch.special.entr(q).sum()).sqrt() > 0.3:
                break
        lengths.append(drafted.shape[1] - ids.shape[1])
        wanted = target(drafted, use_cache=False).logits[0, ids.shape[1] - 1 :].argmax(-1)
        matches = int((drafted[0, ids.shape[1] :] == wanted[:-1]).long().cumprod(0).sum())
        ids = torch.cat([ids, wanted[None, : matches + 1]], dim=1)
        produced += matches + 1
    return lengths


@torch.no_grad()
def test_svip_drafts_as_the_authors_do(llamas):
    policy = RecordingPolicy(SVIP())
    with patch_transformers(llamas.draft, policy=policy):
        generate(llamas.target, llamas.draft, new=32)
    expected = authors_svip(llamas.target, llamas.draft, PROMPT, 32)
    assert len(set(expected)) > 2, "the case is too easy"
    assert [outcome.drafted for outcome in policy.outcomes] == [n for n in expected if n]


class Watching(LengthPolicy):
    """Keeps every step it is asked about; stops after four."""

    def __init__(self, stops_before=False):
        self.stops_before = stops_before
        self.steps = []

    def stop(self, step):
        self.steps.append((step.depth, step.logits.clone(), step.drawn, step.path_logp))
        return step.logits.new_full((1,), step.depth >= 3).bool()


@pytest.mark.parametrize("stops_before", [False, True])
def test_policy_sees_raw_logits_and_the_path(chains, stops_before):
    """Under temperature, top-k and a penalty alike; the path is the kept tokens' log-probability."""
    policy = Watching(stops_before)
    table = chains.draft.table
    with patch_transformers(chains.draft, policy=policy):
        generate(
            chains.target,
            chains.draft,
            new=40,
            do_sample=True,
            temperature=0.5,
            top_k=3,
            repetition_penalty=1.5,
        )
    path = torch.zeros(1)
    for (depth, logits, drawn, path_logp), (after, following, *_) in zip(
        policy.steps, policy.steps[1:], strict=False
    ):
        assert (table == logits).all(-1).sum() == 1
        assert (drawn is None) == stops_before
        path = torch.zeros(1) if depth == 0 else path
        torch.testing.assert_close(path_logp, path)
        if after == depth + 1:
            token = (table == following).all(-1).nonzero().item()
            assert drawn is None or drawn.item() == token
            path = path + logits.log_softmax(-1)[:, token]
    assert {step[0] for step in policy.steps} == {0, 1, 2, 3}


def test_host_rules_are_off_under_a_policy_and_back_afterwards(chains):
    """Its gate, the re-fit of the gate (scikit-learn) and its schedule; the config stays as it was."""
    config = chains.draft.generation_config
    config.assistant_confidence_threshold = 0.9
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = 4, "heuristic_transient"
    steps = []
    chains.draft.register_forward_hook(lambda *_: steps.append(1))
    generate(chains.target, chains.draft, new=40)
    stock, before = len(steps), config.to_dict()
    config.num_assistant_tokens_schedule = before["num_assistant_tokens_schedule"] = "heuristic"
    with patch_transformers(chains.draft, policy=Fixed(7)) as patch:
        generate(chains.target, chains.draft, new=40)
        assert config.to_dict() == before
    assert max(patch.stats.lengths) == patch.stats.lengths.most_common(1)[0][0] == 7
    assert len(steps) - stock == patch.stats.draft_steps
    config.num_assistant_tokens_schedule = "heuristic_transient"
    config.assistant_confidence_threshold = 0.9  # 4.57 leaves its re-fit behind
    steps.clear()
    generate(chains.target, chains.draft, new=40)
    assert len(steps) == stock


# -- what it counts


def test_stats_count_rounds_that_the_policy_ended(chains):
    with patch_transformers(chains.draft, policy=ScriptedPolicy([2])) as patch:
        ids = generate(chains.target, chains.draft, new=30)
        assert len(ids) == 30
    stats = patch.stats
    assert stats.draft_steps == stats.drafted
    assert stats.early_stops > 0
    assert stats.lengths[2] - stats.early_stops in (0, 1), "1: two tokens were all the room there was"
    with patch_transformers(chains.draft, policy=ScriptedPolicy([2], by="plan")) as patch:
        generate(chains.target, chains.draft, new=30)
    assert patch.stats.early_stops == 0
    with patch_transformers(chains.draft, policy=ScriptedPolicy([2], stops_before=True)) as patch:
        generate(chains.target, chains.draft, new=30)
    stats = patch.stats
    assert stats.early_stops > 0
    assert stats.draft_steps == stats.drafted + stats.early_stops, "a draw that is taken back costs a forward"


@pytest.mark.parametrize("name", ["fixed:8", "svip", "svip:stops_before=True"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_an_accepted_eos_ends_the_draft_and_is_counted(chains, name, do_sample):
    kwargs = {"do_sample": do_sample, "top_k": 0, "new": 60}
    plain = generate(chains.target, **kwargs)
    eos = max(set(plain) - {PROMPT[0, -1].item()}, key=plain.index)
    policy = RecordingPolicy(parse_policy(name))
    with patch_transformers(chains.draft, policy=policy) as patch:
        ids = generate(chains.target, chains.draft, eos_token_id=eos, pad_token_id=0, **kwargs)
    if not do_sample:
        assert ids == plain[: plain.index(eos) + 1]
    assert eos not in ids[:-1]
    by_draft = patch.stats.rounds + patch.stats.accepted - len(ids)
    assert by_draft in (0, 1), "1: the EOS was drafted, so the target added nothing"
    assert sum(outcome.accepted for outcome in policy.outcomes) == patch.stats.accepted


@pytest.mark.parametrize("name", ["fixed:0", "svip:stops_before=True", "fixed:3"])
def test_a_prompt_that_ends_in_eos(chains, name):
    """4.57 would take a first round without a draft for the end of the sequence."""
    eos = PROMPT[0, -1].item()
    plain = generate(chains.target, eos_token_id=eos, pad_token_id=0)
    assert plain
    with patch_transformers(chains.draft, policy=parse_policy(name)):
        assert generate(chains.target, chains.draft, eos_token_id=eos, pad_token_id=0) == plain


def test_no_room_for_a_draft(chains):
    with patch_transformers(chains.draft, policy=Fixed(5)) as patch:
        assert generate(chains.target, chains.draft, new=1) == generate(chains.target, new=1)
    assert (patch.stats.rounds, patch.stats.drafted, patch.stats.draft_steps) == (1, 0, 0)


def test_two_drafts_with_two_policies_and_an_unpatched_third(chains, markov_chain):
    other, third = markov_chain(chains.draft.table), markov_chain(chains.draft.table)
    with patch_transformers(chains.draft, policy=Fixed(2)) as two:
        four = patch_transformers(other, policy=Fixed(4))
        outputs = [generate(chains.target, model) for model in (chains.draft, other, third, None)]
        assert all(output == outputs[0] for output in outputs)
    assert max(two.stats.lengths) == 2
    rounds = four.stats.rounds
    generate(chains.target, other)
    assert four.stats.rounds == 2 * rounds, "the first patch took the seam of the second with it"
    assert max(four.stats.lengths) == 4
    four.revert()
    assert footprint(other)[1] == footprint(third)[1]


# -- other ways to generate


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


def test_the_host_refuses_batches(chains):
    prompts = PROMPT.repeat(2, 1)
    with patch_transformers(chains.draft), pytest.raises(ValueError, match="batch_size = 1"):
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


# -- policies that misbehave


class Broken(LengthPolicy):
    """Answers what it is told to, or raises it, in one of its methods; then behaves."""

    def __init__(self, method, answer):
        self.method, self.answer = method, answer

    def _answer(self, method, default):
        if method != self.method:
            return default
        self.method = None
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def begin(self):
        self._answer("begin", None)

    def plan(self, context):
        return self._answer("plan", 4)

    def stop(self, step):
        return self._answer("stop", torch.zeros(1, dtype=torch.bool)) if step.depth == 1 else step.entropy < 0

    def verified(self, outcome):
        self._answer("verified", None)


CASES = [
    ("stop", True, PolicyError, r"expected torch.bool of shape \(1,\) on cpu, found True"),
    ("stop", torch.zeros(2, dtype=torch.bool), PolicyError, r"found torch.bool of shape \(2,\)"),
    ("stop", torch.zeros(1), PolicyError, "found torch.float32"),
    ("stop", torch.zeros(1, dtype=torch.bool, device="meta"), PolicyError, "on meta"),
    ("plan", -1, PolicyError, "found -1"),
    ("plan", 2.5, PolicyError, "found 2.5"),
    ("plan", None, PolicyError, "found None"),
    *(
        (method, RuntimeError("mine"), RuntimeError, "mine")
        for method in ("begin", "plan", "stop", "verified")
    ),
    *((method, KeyboardInterrupt(), KeyboardInterrupt, None) for method in ("plan", "stop")),
]


@pytest.mark.parametrize(("method", "answer", "error", "message"), CASES)
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


# -- patching


def test_revert_leaves_nothing_behind(chains):
    before = footprint(chains.draft)
    patch = patch_transformers(chains.draft, 0.4)
    assert repr(patch.policy) == repr(SVIP(threshold=0.4))
    generate(chains.target, chains.draft)
    assert footprint(chains.draft) != before
    patch.revert()
    patch.revert()
    assert footprint(chains.draft) == before
    patch_transformers(chains.draft).revert()


def test_revert_refuses_under_another_patch_and_loses_nothing(chains, monkeypatch):
    before = footprint(chains.draft)
    patch = patch_transformers(chains.draft)
    ours = GenerationConfig.get_generation_mode
    monkeypatch.setattr(GenerationConfig, "get_generation_mode", lambda *args: ours(*args))
    with pytest.raises(PatchError, match="get_generation_mode"):
        patch.revert()
    assert patch.active
    monkeypatch.undo()
    patch.revert()
    assert footprint(chains.draft) == before


def test_patching_twice_is_refused(chains):
    with patch_transformers(chains.draft) as patch:
        with pytest.raises(PatchError, match="patched already"):
            patch_transformers(chains.draft, 0.5)
        generate(chains.target, chains.draft)
        assert patch.stats.rounds > 0


def test_a_patched_model_is_not_copied(tiny_llama):
    draft = tiny_llama()
    with patch_transformers(draft):
        for copying in (copy.deepcopy, pickle.dumps):
            with pytest.raises(UnsupportedHostError, match="revert"):
                copying(draft)
    assert generate(draft, copy.deepcopy(draft), new=4) == generate(draft, new=4)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"threshold": 0.3, "policy": SVIP()}, "found both"),
        ({"policy": SVIP}, "Pass an instance"),
        ({"policy": "svip"}, "parse_policy"),
        ({"threshold": -1.0}, "threshold"),
    ],
)
def test_policies_that_make_no_sense(chains, kwargs, message):
    before = footprint(chains.draft)
    with pytest.raises(PolicyError, match=message):
        patch_transformers(chains.draft, **kwargs)
    assert footprint(chains.draft) == before


def test_models_that_cannot_generate(llamas):
    for model in (torch.nn.Linear(2, 2), LlamaModel(llamas.draft.config), "gpt2"):
        with pytest.raises(UnsupportedHostError, match=f"found {type(model).__name__}"):
            patch_transformers(model)


def test_unknown_versions_and_changed_functions_touch_nothing(chains, monkeypatch):
    before = footprint(chains.draft)
    with monkeypatch.context() as patched:
        patched.setattr(importlib.metadata, "version", lambda name: "4.40.0")
        with pytest.raises(HostVersionError, match=r"found transformers 4\.40\.0"):
            patch_transformers(chains.draft)
    with monkeypatch.context() as patched:
        patched.setattr(GenerationMixin, "_get_candidate_generator", lambda self, config: None)
        with pytest.raises(UnsupportedHostError, match="the host changed"):
            patch_transformers(chains.draft)
    assert footprint(chains.draft) == before


# -- the package


def test_adapters_refuse_any_other_name():
    spec = importlib.util.spec_from_file_location("adapters", adapters.__file__)
    with pytest.raises(ImportError, match=r"svip_adapters\.adapters"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_every_adapter_is_listed_and_says_what_it_requires():
    files = {path.stem for path in Path(adapters.__file__).parent.glob("[!_]*.py")}
    for name, entry in adapters.HOSTS.items():
        module, function = entry.split(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert name in importlib.import_module(module).REQUIRES
        assert module.rpartition(".")[2] in files


def test_importing_the_adapters_imports_no_host():
    code = "import sys, svip_adapters.adapters; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
