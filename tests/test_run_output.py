"""What a run says on the way: progress, dtype and where greedy answers differ."""

import pytest
import torch

from svip_adapters.evaluation import precision
from svip_adapters.evaluation.differences import Difference, differences, show
from svip_adapters.evaluation.progress import Progress


@pytest.mark.parametrize(
    ("gaps", "dtype", "fine"),
    [
        ((5e-5, 6e-5), "float32", True),
        ((5e-5, 2e-4), "float32", False),
        ((None, 1e-6), "float32", False),
        ((1.0, 1.0), "bfloat16", True),
    ],
)
def test_near_ties_need_both_runs(gaps, dtype, fine, capsys):
    assert show(iter([Difference("fixed:5", 81, 0, 3, *gaps)]), dtype=dtype) is fine
    assert "fixed:5, question 81, turn 1, token 4" in capsys.readouterr().out


def test_no_difference_prints_nothing(capsys):
    assert show(differences({"plain": {1: {}}, "host": {1: {"difference": None}}}), dtype="float32")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("wanted", "found", "dtype", "reason"),
    [
        ("bfloat16", {}, "bfloat16", "as asked"),
        ("auto", {"avx512_bf16": True, "amx_bf16": False}, "bfloat16", "avx512_bf16"),
        ("auto", {"amx_bf16": True}, "bfloat16", "amx_bf16"),
        ("auto", {"avx2": True}, "float32", "no fast bfloat16"),
    ],
)
def test_dtype_follows_the_processor(monkeypatch, wanted, found, dtype, reason):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    chosen = precision.choose_dtype(wanted, "cpu")
    assert chosen[0] == dtype
    assert reason in chosen[1]


@pytest.mark.parametrize("supported", [True, False])
def test_dtype_on_a_gpu(monkeypatch, supported):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: supported)
    assert precision.choose_dtype("auto", "cuda")[0] == ("bfloat16" if supported else "float32")


def test_progress_without_a_terminal_prints_a_line_now_and_then(capsys):
    with Progress(3, every=1000) as progress:
        for _ in range(3):
            progress.advance("svip")
    assert capsys.readouterr().out == "3/3 turns, 0:00 left\n"
    with Progress(3, every=0) as progress:
        for _ in range(3):
            progress.advance("svip")
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_progress_on_a_terminal_draws_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress(2) as progress:
        progress.advance("svip")
        progress.advance("host")
    assert "2/2" in capsys.readouterr().out
