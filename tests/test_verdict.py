"""Did it pay? Winning, losing and not knowing, in words."""

from __future__ import annotations

import pytest
from summaries import SVIP, cell, make_summary

from svip_adapters.evaluation.page import table_rows
from svip_adapters.evaluation.verdict import FASTER, SLOWER, UNCLEAR, judge


@pytest.mark.parametrize(
    ("low", "high", "prompts", "outcome", "words"),
    [
        (1.05, 1.25, 20, FASTER, "SVIP paid: svip:threshold=0.3 ran at 1.15x the speed of host"),
        (0.85, 0.95, 20, SLOWER, "SVIP did not pay, it was slower: svip:threshold=0.3 ran at 0.90x"),
        (0.95, 1.15, 20, UNCLEAR, "Not clear whether SVIP paid: the interval spans 1."),
        (1.00, 1.10, 20, UNCLEAR, "Not clear whether SVIP paid"),
        (1.05, 1.25, 4, UNCLEAR, "too few prompts to tell"),
        (1.15, 1.15, 1, UNCLEAR, "1.15x the speed of host (1 prompt)"),
    ],
)
def test_headline(low: float, high: float, prompts: int, outcome: str, words: str) -> None:
    """Winning, losing and not knowing are each said in so many words."""
    (verdict,) = judge(make_summary(cell("overall", SVIP, low, high, prompts=prompts)))
    assert verdict.outcome == outcome
    assert words in verdict.headline
    assert (f"95% interval {low:.2f}-{high:.2f}" in verdict.headline) == (prompts > 1)


def test_details_name_what_lost() -> None:
    """Slower than plain, the losing task and the faster rival are all in the sentences."""
    summary = make_summary(
        cell("math", SVIP, 1.1, 1.3),
        cell("stem", SVIP, 0.7, 0.8),
        cell("art", SVIP, 0.7, 1.8, prompts=2),
        cell(
            "overall", SVIP, 1.02, 1.1, identical=18, speedup_vs_plain={"value": 0.8, "low": 0.7, "high": 0.9}
        ),
        cell("overall", "fixed:5", 1.3, 1.5),
    )
    (verdict,) = judge(summary)
    text = " ".join(verdict.details)
    assert "alone it was slower, so not drafting at all was better: 0.80x the speed of plain" in text
    assert "faster in 1 (math); slower in 1 (stem); not clear in 1 (1 with fewer than 5 prompts" in text
    assert "Best is art at 1.25x, worst stem at 0.75x" in text
    assert "drafted 3.0 tokens a round, of which the target accepted 1.5 (50%)" in text
    assert "identical to plain's on 18 of 20 prompts. The field 'difference'" in text
    assert "fastest policy measured was fixed:5, at 1.40x" in text


def test_verdicts_without_svip_and_with_several() -> None:
    host, fixed = cell("overall", "host", 1, 1), cell("overall", "fixed:5", 1.1, 1.2)
    plain = cell("overall", "plain", 0.5, 0.6, rounds=0, drafted=0, accepted=0)
    assert [v.headline[:13] for v in judge(make_summary(plain, host, fixed))] == ["fixed:5 paid:"]
    two = [cell("overall", f"svip:threshold={h}", 1.1, 1.2) for h in (0.3, 0.5)]
    assert len(judge(make_summary(plain, host, fixed, *two))) == 2
    (verdict,) = judge(make_summary(plain, fixed, two[0], baseline="svip:threshold=0.3"))
    assert "is the baseline itself" in verdict.headline
    assert judge(make_summary(plain, host)) == []


def test_sampling_is_not_called_different() -> None:
    summary = make_summary(cell("overall", SVIP, 1.1, 1.2, identical=None), temperature=0.7)
    (verdict,) = judge(summary)
    assert any("Sampled at temperature 0.7" in sentence for sentence in verdict.details)
    assert table_rows(summary)[0]["identical"] == "-"
