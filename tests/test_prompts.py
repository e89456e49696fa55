"""Prompt sets: the built-in one, files, and public sets by download."""

import hashlib
import json
from collections import Counter

import pytest

from svip_adapters.evaluation import datasets, prompts
from svip_adapters.evaluation.errors import BenchError


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(i, category="math", turns=("hello", "and now?")):
    return {"question_id": i, "category": category, "turns": list(turns)}


@pytest.fixture
def served(tmp_path, monkeypatch):
    """mt_bench as a local file, with a cache of its own."""
    file = write(tmp_path / "question.jsonl", [row(81, "writing"), row(82, "stem")])
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(datasets.SOURCES, "mt_bench", datasets.Source("o/n", "c0ffee", "q.jsonl", sha256))
    monkeypatch.setattr(datasets.Source, "url", property(lambda self: file.as_uri()))
    monkeypatch.setenv("SVIP_ADAPTERS_CACHE", str(tmp_path / "cache"))
    return file


def test_builtin_is_two_two_turn_prompts_in_each_category():
    found = prompts.load("builtin")
    assert Counter(p.category for p in found) == dict.fromkeys(prompts.CATEGORIES, 2)
    assert all(len(p.turns) == 2 for p in found)
    assert len({turn for p in found for turn in p.turns}) == 32


def test_limit_spreads_over_the_categories_and_keeps_the_order():
    eight = prompts.load("builtin", limit=8)
    assert [p.category for p in eight] == list(prompts.CATEGORIES)
    assert len(prompts.load("builtin", limit=99)) == 16


def test_max_turns_keeps_the_first():
    full, cut = prompts.load("builtin"), prompts.load("builtin", max_turns=1)
    assert [p.turns for p in cut] == [p.turns[:1] for p in full]


def test_a_file_of_the_users(tmp_path):
    file = write(
        tmp_path / "mine.jsonl", [row("a", ""), {"question_id": 2, "turns": ["x"], "reference": ["y"]}]
    )
    assert prompts.load(str(file)) == [
        prompts.Prompt("a", "mine", ("hello", "and now?")),
        prompts.Prompt(2, "mine", ("x",)),
    ]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{not json", "expected one JSON object"),
        ("[1]", "expected a JSON object, found list"),
        ('{"turns": ["x"]}', "expected a question_id"),
        ('{"question_id": 2, "turns": []}', "expected turns"),
        ('{"question_id": 2, "turns": "x"}', "expected turns"),
        ('{"question_id": 2, "turns": ["x", 3]}', "expected turns"),
        ('{"question_id": 1, "turns": ["x"]}', "was used before"),
        ('{"question_id": 2, "category": "overall", "turns": ["x"]}', "give it another name"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, second, message):
    file = write(tmp_path / "mine.jsonl", [row(1)])
    file.write_text(file.read_text() + "\n" + second + "\n")
    with pytest.raises(BenchError, match=f"mine.jsonl, line 3: .*{message}"):
        prompts.load(str(file))


@pytest.mark.parametrize(
    ("name", "message"),
    [("mtbench", "did you mean 'mt_bench'"), ("nowhere.jsonl", "could not read"), ("zzz", "expected one of")],
)
def test_unknown_sets(name, message):
    with pytest.raises(BenchError, match=message):
        prompts.load(name)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00"])
def test_a_file_without_prompts(tmp_path, content):
    (tmp_path / "e.jsonl").write_bytes(content)
    with pytest.raises(BenchError, match=r"e\.jsonl"):
        prompts.load(str(tmp_path / "e.jsonl"))


def test_digest_changes_with_any_word():
    a, b = prompts.Prompt(1, "math", ("x", "y")), prompts.Prompt(1, "math", ("x", "z"))
    assert prompts.digest([a]) == prompts.digest([a])
    assert len({prompts.digest(ps) for ps in ([a], [b], [a, b], [b, a])}) == 4


def test_a_public_set_is_downloaded_once(served):
    assert [p.id for p in prompts.load("mt_bench")] == [81, 82]
    served.unlink()
    assert [p.id for p in prompts.load("mt_bench")] == [81, 82]


def test_a_damaged_copy_in_the_cache_is_downloaded_again(served):
    path = datasets.fetch("mt_bench")
    path.write_text("torn")
    assert datasets.fetch("mt_bench").read_bytes() == served.read_bytes()


def test_other_bytes_than_the_pinned_ones_are_refused(served):
    served.write_text(json.dumps(row(81, turns=["altered"])))
    with pytest.raises(BenchError, match=r"should have SHA-256 .*--data DIR"):
        prompts.load("mt_bench")


def test_a_failed_download_says_what_to_do(served):
    served.unlink()
    with pytest.raises(BenchError, match=r"could not get the prompt set 'mt_bench'.*--data DIR"):
        prompts.load("mt_bench")


def test_sources_are_pinned():
    for source in datasets.SOURCES.values():
        assert len(source.commit) == 40
        assert len(source.sha256) == 64
        assert source.url.startswith(
            f"https://raw.githubusercontent.com/{source.repository}/{source.commit}/"
        )


def test_a_folder_instead_of_the_network(tmp_path):
    write(tmp_path / "alpaca.jsonl", [row(0, "")])
    assert prompts.load("alpaca", data=tmp_path)[0].category == "alpaca"
    with pytest.raises(BenchError, match=r"gsm8k\.jsonl, found no such file"):
        prompts.load("gsm8k", data=tmp_path)


def test_spec_bench_in_parts_has_mt_bench_as_one_task(tmp_path):
    write(tmp_path / "mt_bench.jsonl", [row(81, "writing"), row(82, "stem")])
    write(tmp_path / "qa.jsonl", [row(321, "qa")])
    with pytest.raises(BenchError, match=r"spec_bench\.jsonl"):
        prompts.load("spec_bench", data=tmp_path)
    write(tmp_path / "sum.jsonl", [row(241, "summarization")])
    write(tmp_path / "spec_bench_rag.jsonl", [row(481, "rag")])
    found = prompts.load("spec_bench", data=tmp_path)
    assert [p.category for p in found] == ["mt_bench", "mt_bench", "rag", "qa", "summarization"]


def test_several_sets_are_a_task_each_and_spec_bench_keeps_its_own(tmp_path):
    for name, category in (("mt_bench", "writing"), ("spec_bench_rag", "rag"), ("qa", "qa"), ("sum", "sum")):
        write(tmp_path / f"{name}.jsonl", [row(1 if name == "qa" else len(name), category)])
    write(tmp_path / "gsm8k.jsonl", [row(1, "math"), row(2, "math")])
    found = prompts.load("spec_bench,gsm8k", data=tmp_path)
    assert [p.category for p in found] == ["mt_bench", "rag", "qa", "sum", "gsm8k", "gsm8k"]
    assert len({p.id for p in found}) == 6
    assert [p.category for p in prompts.load("spec_bench,gsm8k", data=tmp_path, limit=5)][-1] == "gsm8k"
    with pytest.raises(BenchError, match="unknown prompt set 'zzz'"):
        prompts.load("builtin,zzz")
