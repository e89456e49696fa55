"""Cells and intervals against sums done by hand."""

import numpy as np
import pytest

from svip_adapters.evaluation.metrics import bootstrap_ratio, cells


def record(category, tokens, seconds, ids=(1,)):
    return {
        "category": category,
        "ids": [list(ids)],
        "new_tokens": [tokens, tokens],
        "wall_time": [seconds, seconds],
        "accept_lengths": [[2, 1], [3]],
        "draft_lengths": [[4, 0], [2]],
        "accepted": [1, 2],
        "draft_steps": [5, 3],
        "target_forwards": [2, 1],
        "nodes_verified": [4, 2],
    }


ANSWERS = {
    "plain": {1: record("math", 10, 1.0), 2: record("stem", 10, 2.0), "x": record("math", 10, 3.0)},
    "fixed:5": {1: record("math", 10, 0.5), 2: record("stem", 10, 4.0, (2,)), "x": record("math", 10, 1.0)},
}


def by_name(found):
    return {(cell["task"], cell["policy"]): cell for cell in found}


def test_one_cell_a_task_and_policy_and_overall_last():
    found = cells(ANSWERS, baseline="plain", seed=0, greedy=True)
    tasks = [task for task in ("math", "stem", "overall") for _ in ANSWERS]
    assert [(c["task"], c["policy"]) for c in found] == list(
        zip(tasks, ["plain", "fixed:5"] * 3, strict=True)
    )


def test_cells_add_up():
    cell = by_name(cells(ANSWERS, baseline="plain", seed=0, greedy=True))["overall", "fixed:5"]
    counts = {key: cell[key] for key in ("prompts", "tokens", "seconds", "rounds", "drafted", "accepted")}
    assert counts == {"prompts": 3, "tokens": 60, "seconds": 11.0, "rounds": 9, "drafted": 18, "accepted": 9}
    assert (cell["draft_steps"], cell["target_forwards"], cell["nodes_verified"]) == (24, 9, 18)


def test_cells_have_exactly_the_schema():
    keys = "task policy prompts tokens seconds rounds drafted accepted draft_steps target_forwards"
    for cell in cells(ANSWERS, baseline="plain", seed=0, greedy=True):
        assert set(cell) == {*keys.split(), "nodes_verified", "identical", "speedup", "speedup_vs_plain"}
        assert set(cell["speedup"]) == set(cell["speedup_vs_plain"]) == {"value", "low", "high"}


def test_identical_counts_prompts_and_is_unknown_for_sampled_answers():
    greedy = by_name(cells(ANSWERS, baseline="plain", seed=0, greedy=True))
    assert greedy["overall", "fixed:5"]["identical"] == 2
    assert greedy["stem", "fixed:5"]["identical"] == 0
    assert greedy["overall", "plain"]["identical"] == 3
    assert {c["identical"] for c in cells(ANSWERS, baseline="plain", seed=0, greedy=False)} == {None}


def test_speedup_is_a_ratio_of_totals_not_a_mean_of_ratios():
    found = by_name(cells(ANSWERS, baseline="fixed:5", seed=0, greedy=True))
    assert found["overall", "fixed:5"]["speedup_vs_plain"]["value"] == pytest.approx(12 / 11)
    assert found["overall", "plain"]["speedup"]["value"] == pytest.approx(11 / 12)
    assert set(found["overall", "fixed:5"]["speedup"].values()) == {1.0}


def test_the_bootstrap_is_paired():
    """Prompts that differ a hundredfold in speed, each twice as fast: paired, there is nothing uncertain."""
    base = np.array([[10.0] * 6, [1.0, 100.0, 3.0, 0.5, 20.0, 7.0]])
    picks = np.random.default_rng(0).integers(0, 6, (500, 6))
    found = bootstrap_ratio(base / [[1.0], [2.0]], base, picks)
    assert list(found.values()) == pytest.approx([2.0, 2.0, 2.0])


def test_the_interval_holds_what_is_known_of_a_mean():
    """For equal tokens and one base time the ratio is 1 / mean(seconds): compare with the normal interval."""
    rng = np.random.default_rng(1)
    seconds = rng.normal(1.0, 0.2, 400)
    ours, base = np.stack([np.ones(400), seconds]), np.ones((2, 400))
    found = bootstrap_ratio(ours, base, rng.integers(0, 400, (2000, 400)))
    half = 1.96 * seconds.std() / 20
    assert found["low"] == pytest.approx(1 / (seconds.mean() + half), abs=0.004)
    assert found["high"] == pytest.approx(1 / (seconds.mean() - half), abs=0.004)


def test_the_same_seed_gives_the_same_interval():
    first, again = (cells(ANSWERS, baseline="plain", seed=0, greedy=True) for _ in range(2))
    assert first == again
