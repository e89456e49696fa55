"""How the embedded drafter was trained: text, stored states, distillation; all on a tiny random target."""

import json

import pytest
import torch

from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.hosts.chain_draft import load_draft
from svip_adapters.evaluation.train import batches, chain, distil, generate, prompts, states, text
from svip_adapters.evaluation.train.__main__ import main

VOCABULARY = 64  # of the fixture target


class Words:
    """A tokenizer over words: w3 is token 3; 2 ends an answer."""

    eos_token_id, padding_side = 2, "right"

    def apply_chat_template(self, messages, **_):
        return " ".join(["w1", *messages[0]["content"].split(), "w5"])

    def __call__(self, texts, padding=False, **_):
        if isinstance(texts, str):
            return {"input_ids": [int(word[1:]) for word in texts.split()]}
        rows = [self(one)["input_ids"] for one in texts]
        width = max(map(len, rows))
        assert self.padding_side == "left"
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    def decode(self, ids):
        return " ".join(f"w{i}" for i in ids)


def test_stored_states_are_those_of_one_answer_alone(target, stored):
    """Batched, padded and in bf16, yet the same as one unpadded forward."""
    row = torch.load(next(stored.glob("*.pt")))[7]
    with torch.inference_mode():
        hidden = target.model(row["ids"][None].long(), output_hidden_states=True).hidden_states
    torch.testing.assert_close(row["inputs"].float(), hidden[1][0], rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(row["final"].float(), hidden[-1][0], rtol=1e-2, atol=1e-2)


def test_storing_keeps_chunks_of_the_same_answers_only(target, tmp_path, capsys):
    answers = [text.Answer([1], [3 + i, 4, 5], 0.0) for i in range(2)]
    for expected in ("1 of 1", "", "2 of 2"):
        states.store_states(target, answers[: 2 if expected == "2 of 2" else 1], tmp_path, borrowed=1)
        assert capsys.readouterr().out.startswith(expected)
    assert len(list(tmp_path.glob("*.pt"))) == 1


def test_mask_marks_the_positions_before_answer_tokens(target, tmp_path):
    states.store_states(
        target, [text.Answer([1, 7, 8], answer, 0.0) for answer in ([9] * 3, [9] * 5)], tmp_path, borrowed=1
    )
    batch = batches.collate(torch.load(next(tmp_path.glob("*.pt"))))
    assert batch.mask.tolist() == [
        [i in (2, 3, 4) for i in range(8)],
        [i in (2, 3, 4, 5, 6) for i in range(8)],
    ]


def test_batches_hold_every_row_once_an_epoch_within_the_limit(stored):
    rows, held = batches.load_states(stored)
    assert len(rows) + len(held) == 60
    seen, stream = 0, batches.endless(rows, tokens=100, seed=0)
    while seen < len(rows):
        batch = next(stream)
        assert batch.mask.numel() <= 100
        seen += len(batch.mask)
    assert seen == len(rows)


def test_training_improves_on_the_early_exit_and_its_file_loads(target, stored, tmp_path, monkeypatch):
    """The file written is a drafter whose own forward is what was trained."""
    monkeypatch.setattr(chain, "RIDGE_ROWS", 400)
    recipe = distil.Recipe(steps=60, rate=5e-3, tokens=400, vocabulary=VOCABULARY)
    head = target.get_input_embeddings().weight.detach()
    rows, _ = batches.load_states(stored)
    start = chain.ChainDraft(target, borrowed=1, trained=1)
    start.solve_projection(batches.endless(rows, 400, 0), 400)
    before = chain.agreement(start, rows, head)[0.0]
    chain.train(target, [stored], tmp_path / "draft.safetensors", recipe, borrowed=1, trained=1)

    draft = load_draft(target, tmp_path / "draft.safetensors")
    hits = total = 0
    for row in rows:
        ids = row["ids"][None].long()
        with torch.inference_mode():
            same = draft(ids).logits[0].argmax(-1) == (row["final"].float() @ head.T).argmax(-1)
        hits, total = hits + int(same[row["mask"]].sum()), total + int(row["mask"].sum())
    assert draft.config.num_hidden_layers == 2
    assert hits / total > before + 0.05


def test_answers_are_filtered_and_cut(tmp_path):
    words = " ".join(f"w{3 + i % 50}" for i in range(60))
    long = " ".join(f"w{i}" for i in range(text.MAX_TOKENS + 1))
    rows = [
        {"prompt": "w9", "response": words, "temperature": 1.0, "finish": "stop"},
        {"prompt": "w9", "response": "w7 w8 " * 200, "temperature": 0.0, "finish": "length"},
        {"prompt": "w9", "response": "w7 w8", "temperature": 0.0, "finish": "stop"},
        {"prompt": "w9", "response": long, "temperature": 0.0, "finish": "length"},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    looping, sampled = text.read_answers([path], Words())
    assert (looping.temperature, len(looping.answer)) == (0.0, text.LOOP_TOKENS)
    assert sampled.prompt == [1, 9, 5]
    assert sampled.answer[-1] == Words.eos_token_id


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"prompt": "w1"}\n')
    with pytest.raises(BenchError, match=r"answers\.jsonl, line 1"):
        text.read_answers([path], Words())


def test_generate_goes_on_where_it_stopped(target, tmp_path, monkeypatch):
    made = [f"w{3 + i}" for i in range(10)]
    monkeypatch.setattr(generate, "prompts", lambda: made)
    path = tmp_path / "answers.jsonl"
    generate.generate(target, Words(), path, count=4, batch=2, limit=12)
    with path.open("a") as file:
        file.write('{"prompt": "torn')
    generate.generate(target, Words(), path, count=10, batch=2, limit=12)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["prompt"] for row in rows] == made
    assert {row["temperature"] for row in rows} == set(generate.TEMPERATURES)
    assert all(row["tokens"] == 12 or row["finish"] == "stop" for row in rows)


def test_prompts_are_many_distinct_and_seeded():
    made = prompts.prompts(seed=3)
    assert len(set(made)) == len(made) > 800
    assert made == prompts.prompts(seed=3) != prompts.prompts(seed=4)


def test_training_without_states_is_one_sentence(target, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("svip_adapters.evaluation.hosts.smollm2.load_target", lambda dtype: target)
    out = tmp_path / "draft.safetensors"
    assert main(["chain", str(tmp_path), "--out", str(out)]) == 2
    assert "found none; write them first with: train converse" in capsys.readouterr().err
    assert not out.exists()
