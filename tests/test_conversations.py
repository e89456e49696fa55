"""Conversations that the target writes alone: what is drawn, what is kept, how a killed run goes on."""

import random

import pytest
import torch
from tiny import tiny_target

from svip_adapters.evaluation.train import batches, conversations
from svip_adapters.evaluation.train.conversations import Limits, converse

START, TO_ANSWER, TO_QUESTION, END = [1, 9], [2, 7, 8], [2, 7, 9], 2
LIMITS = Limits(question=20, answer=30, total=100, second=0.6)


class Template:
    """A tokenizer whose chat template is START question TO_ANSWER answer TO_QUESTION question TO_ANSWER."""

    eos_token_id = END

    def apply_chat_template(self, messages, **_):
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        question, answer, again = (message["content"] for message in messages)
        return f"w1 w9 {question} w2 w7 w8 {answer} w2 w7 w9 {again} w2 w7 w8"

    def __call__(self, text, **_):
        return {"input_ids": [int(word[1:]) for word in text.split()]}


@pytest.fixture(scope="module")
def target():
    return tiny_target(16)


@pytest.fixture(scope="module")
def rows(target, tmp_path_factory):
    """Three chunks of eight conversations."""
    folder = tmp_path_factory.mktemp("conversations")
    torch.manual_seed(5)
    converse(target, Template(), folder, tokens=450, borrowed=1, seed=3, rows=8, limits=LIMITS)
    return [row for path in sorted(folder.glob("003-*.pt")) for row in torch.load(path)]


def test_states_are_those_of_one_conversation_alone(target, rows):
    """Whatever stood in the row's cache before, and whatever its neighbours were doing."""
    assert len(rows) > 16
    for row in rows:
        with torch.inference_mode():
            hidden = target.model(row["ids"][None].long(), output_hidden_states=True).hidden_states
        torch.testing.assert_close(row["inputs"].float(), hidden[1][0], rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(row["final"].float(), hidden[-1][0], rtol=1e-2, atol=1e-2)


def test_turns_follow_the_template_and_the_limits(rows):
    turns = set()
    for row in rows:
        ids, mask = row["ids"].tolist(), row["mask"].tolist()
        assert ids[:2] == START
        answers = [i for i, marked in enumerate(mask) if marked and not mask[i - 1]]
        turns.add(len(answers))
        for i in answers:
            assert ids[i - 2 : i + 1] == TO_ANSWER
        assert len(ids) < LIMITS.total
        assert sum(mask) <= LIMITS.answer * len(answers)
        if len(answers) == 2:
            assert any(ids[i : i + 3] == TO_QUESTION for i in range(answers[0], answers[1]))
    assert turns == {1, 2}


def test_answers_at_temperature_zero_are_greedy(target, rows):
    head = target.lm_head.weight.detach()
    shares = {}
    for row in rows:
        marked = row["mask"][:-1]  # what the last position drew is not read in
        same = (row["final"].float() @ head.T).argmax(-1)[:-1][marked] == row["ids"][1:][marked]
        shares.setdefault(row["temperature"], []).append(same.float().mean())
    assert min(shares[0.0]) > 0.9  # states are kept in bf16: a near-tie may fall the other way
    assert torch.stack(shares[1.0]).mean() < 0.9


def test_a_template_part_that_does_not_fit_ends_a_conversation():
    """It would be read in beyond the cache."""
    template = conversations._Template(Template())
    for room in range(1, 6):
        limits = Limits(question=99, answer=99, total=len(START) + room, second=1.0)
        row = conversations._Row(template, limits, random.Random(0))
        goes_on = row.put(END)
        assert goes_on == (room > len(TO_ANSWER))
        assert len(row.ids) <= limits.total


def test_nothing_outside_the_nucleus_is_drawn():
    logits = torch.tensor([[2.0, 1.9, 1.8, -1.0, -9.0]]).repeat(400, 1)
    assert set(conversations._choose(logits, [1.0] * 400)) == {0, 1, 2}
    assert set(conversations._choose(logits, [0.0] * 400)) == {0}


def test_a_second_run_adds_what_is_missing(target, tmp_path, capsys):
    def write(tokens, seed=0):
        converse(target, Template(), tmp_path, tokens=tokens, borrowed=1, seed=seed, rows=4, limits=LIMITS)
        return capsys.readouterr().out.count("\n"), sorted(tmp_path.glob("*.pt"))

    made, first = write(30)
    kept = [path.read_bytes() for path in first]
    assert made == len(first) >= 1
    assert write(30) == (0, first)
    made, both = write(30 + int(sum(row["mask"].sum() for path in first for row in torch.load(path))))
    assert made >= 1
    assert [path.read_bytes() for path in both[: len(first)]] == kept
    assert torch.load(both[-1])[0]["ids"].tolist() != torch.load(both[0])[0]["ids"].tolist()
    assert len(write(30, seed=1)[1]) > len(both)
    assert len(batches.load_states(tmp_path)[0]) >= 8
