"""The Hugging Face adapter: what it drafts and what it counts."""

import pytest
import torch
from assisted import PROMPT, footprint, generate
from rules import RULES

from svip_adapters import (
    SVIP,
    Fixed,
    LengthPolicy,
    parse_policy,
    patch_transformers,
)
from svip_adapters.testing import RecordingPolicy, ScriptedPolicy


@pytest.mark.parametrize("name", [*RULES, "fixed:0"])
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


@pytest.mark.parametrize("script", [[0, 3], [0, 0, 0, 2], [2, 0, 0, 4]])
def test_drafts_may_begin_late_and_pause(chains, script):
    """With an attention mask, as tokenizers give it: the host lengthens it from its second draft on only."""
    options = {"attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 30, "do_sample": False}
    plain = chains.target.generate(PROMPT, **options)
    with patch_transformers(chains.draft, policy=ScriptedPolicy(script, by="plan")) as patch:
        output = chains.target.generate(PROMPT, assistant_model=chains.draft, **options)
    assert torch.equal(output, plain)
    assert patch.stats.accepted > 3


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
