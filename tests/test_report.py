"""The report: table rows, plots' data, the HTML page and its files."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from summaries import SVIP, cell, make_summary

from svip_adapters.errors import HostVersionError
from svip_adapters.evaluation import metrics, plot_data, plots, report
from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.page import page, table_rows
from svip_adapters.evaluation.records import answer_file
from svip_adapters.evaluation.verdict import SLOWER, UNCLEAR

Console = pytest.importorskip("rich.console").Console


def test_table_rows_hide_nothing() -> None:
    summary = make_summary(
        cell("math", "host", 1, 1),
        cell("math", SVIP, 0.8, 0.9),
        cell("overall", "host", 1, 1),
        cell("overall", SVIP, 0.9, 1.2, drafted=0, accepted=0, seconds=0),
    )
    rows = table_rows(summary)
    assert [(row["task"], row["result"]) for row in rows] == [
        ("overall", "baseline"),
        ("overall", UNCLEAR),
        ("math", "baseline"),
        ("math", SLOWER),
    ]
    assert (rows[1]["tokens/s"], rows[1]["accepted of drafted"]) == ("-", "-")
    assert (rows[3]["speed-up"], rows[3]["95% interval"], rows[3]["draft_steps"]) == (
        "0.85x",
        "0.80-0.90",
        "1200",
    )


@pytest.mark.parametrize(("width", "wide"), [(80, False), (130, True)])
def test_print_table(width: int, wide: bool) -> None:
    """Markup in names is text; a narrow terminal drops counts, never a row."""
    summary = make_summary(
        cell("overall", "host", 1, 1), cell("overall", SVIP, 0.8, 0.9), cell("[b]math[/b]", SVIP, 1.1, 1.3)
    )
    out = io.StringIO()
    report.print_table(summary, Console(file=out, width=width, color_system=None))
    text = out.getvalue()
    assert text.count(f"{SVIP} ") >= 2
    assert "0.80-0.90" in text
    assert "1.10-1.30" in text
    assert "[b]math[/b]: 20 prompts" in text
    assert ("drafted" in text.splitlines()[2]) == wide
    assert "SVIP did not pay" in text
    assert max(map(len, text.splitlines())) <= width


def record(policy: str, key: int, category: str, drafted: list[int], gained: list[int]) -> dict[str, Any]:
    """One answer of one turn."""
    plain = policy == "plain"
    return {
        "question_id": key,
        "policy": policy,
        "category": category,
        "wall_time": [2.0 if plain else 1.0],
        "new_tokens": [sum(gained)],
        "accept_lengths": [gained],
        "draft_lengths": [drafted],
        "accepted": [sum(gained) - len(gained)],
        "draft_steps": [sum(drafted)],
        "target_forwards": [len(gained)],
        "nodes_verified": [sum(drafted)],
        "ids": [[1, 2, 3]],
    } | ({"probe": [[[0.1, True], [2.0, False], [0.0, True]]]} if plain else {})


def make_run(out: Path, *, prompts: int = 6, categories: tuple[str, ...] = ("math", "art")) -> None:
    """The files of a finished run: plain, host and SVIP."""
    shapes = {"plain": ([0] * 6, [1] * 6), "host": ([3, 3], [2, 4]), SVIP: ([2, 3], [3, 3])}
    answers: dict[str, dict[int | str, dict[str, Any]]] = {
        policy: {i: record(policy, i, categories[i % len(categories)], *shape) for i in range(prompts)}
        for policy, shape in shapes.items()
    }
    (out / "answers").mkdir(parents=True)
    for policy, found in answers.items():
        lines = "".join(json.dumps(r) + "\n" for r in found.values())
        (out / "answers" / answer_file(policy)).write_text(lines)
    cells = metrics.cells(answers, baseline="host", seed=0, greedy=True)
    (out / "summary.json").write_text(json.dumps(make_summary(*cells)))
    (out / "run.json").write_text(json.dumps({"max_new_tokens": 64, "prompts": {"count": prompts}}))


PLOTS = {"speedup.png", "draft_length.png", "acceptance_by_entropy.png"}


def test_write(tmp_path: Path) -> None:
    """Three plots and one page that needs no other file."""
    make_run(tmp_path)
    path = report.write(tmp_path)
    assert path == tmp_path / "report.html"
    assert {p.name for p in tmp_path.iterdir()} == PLOTS | {
        "report.html",
        "summary.json",
        "run.json",
        "answers",
    }
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in PLOTS)
    text = path.read_text()
    assert len(re.findall(r'src="data:image/png;base64,', text)) == 3
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert "http" not in text
    for expected in ("max new tokens", "count 6", "torch 2.13.0", "Not clear whether SVIP paid"):
        assert expected in text
    assert text.count("<tr") == 1 + 3 + 1 + 9


def test_write_with_little_data(tmp_path: Path) -> None:
    """One prompt, no probe, temperature above 0, no run.json: still a report, and a stale plot goes."""
    make_run(tmp_path, prompts=1)
    (tmp_path / "run.json").unlink()
    summary = json.loads((tmp_path / "summary.json").read_text()) | {"temperature": 1.0}
    for each in summary["cells"]:
        each["identical"] = None
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    plain = tmp_path / "answers" / "plain.jsonl"
    plain.write_text(json.dumps({**json.loads(plain.read_text()), "probe": []}) + "\n" + '{"torn')
    (tmp_path / "acceptance_by_entropy.png").touch()
    text = report.write(tmp_path).read_text()
    assert not (tmp_path / "acceptance_by_entropy.png").exists()
    assert text.count("data:image/png") == 2
    assert "hold no data for this plot" in text
    assert "too few prompts to tell" in text


def test_write_of_plain_alone(tmp_path: Path) -> None:
    """Nothing drafted, nothing to compare."""
    cells = [cell("overall", "plain", 1, 1, drafted=0, accepted=0, draft_steps=0)]
    (tmp_path / "summary.json").write_text(json.dumps(make_summary(*cells, baseline="plain")))
    text = report.write(tmp_path).read_text()
    assert "no policy to compare" in text
    assert text.count("hold no data for this plot") == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("summary.json", None, r"summary\.json, found.*repeating its command"),
        ("summary.json", "{", r"summary\.json, found"),
        ("summary.json", "[]", "found a list"),
        ("answers/plain.jsonl", "nonsense\n", r"plain\.jsonl, line 1, found"),
        ("answers/plain.jsonl", "{}\n", "delete that line"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    make_run(tmp_path, prompts=1)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BenchError, match=message):
        report.write(tmp_path)


def test_missing_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, prompts=1)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HostVersionError, match=r"matplotlib.*pip install 'svip-adapters\[eval\]'"):
        report.write(tmp_path)


def test_page_escapes_what_comes_from_files(tmp_path: Path) -> None:
    """Names of models, policies and tasks are text, also for matplotlib's formulas and for the template."""
    evil = "<script>alert('$title & $x$')</script>"
    cells = [cell("overall", "host", 1, 1)]
    cells += [cell(task, f"svip:{evil}", 1.1, 1.2) for task in (evil, "overall")]
    summary = make_summary(*cells, target=evil, draft=evil, baseline="host", versions={evil: evil})
    images = {
        "speedup.png": plots.speedup_by_task(summary),
        "draft_length.png": plots.draft_length(summary, {}),
    }
    text = page(summary, images, {evil: [evil]})
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 9
    assert "$title" in text


def test_rounds_by_draft_length() -> None:
    """Accepted is gained minus the target's own token, except where the last round ended on a drafted one."""
    records = [record(SVIP, 0, "a", [4, 2, 0], [3, 3, 1]), record(SVIP, 1, "a", [4, 2], [5, 2])]
    records[1]["accepted"] = [6]
    assert plot_data.rounds_by_draft_length(records) == [(2, 2.0, 2), (4, 3.0, 2)]


def test_entropy_bins() -> None:
    """Bins are even in sqrt(0.15 H): 0.6 nats, where SVIP stops at 0.3, is an edge; 30 nats are not lost."""
    probe = [[[0.5, True], [0.59, False]], [[0.61, True], [30.0, False]]]
    first, second, last = plot_data.entropy_bins([{"probe": probe}, {}])
    assert (first["count"], first["rate"], first["entropy"]) == (2, 0.5, pytest.approx(0.545))
    assert first["right"] == pytest.approx(0.6) == second["left"]
    assert (second["rate"], last["rate"], last["count"]) == (1.0, 0.0, 1)
    assert second["low"] < 1
    assert last["high"] == pytest.approx(0.7935, abs=1e-3)  # Wilson, 0 of 1
    assert plot_data.entropy_bins([{"probe": None}]) == []
