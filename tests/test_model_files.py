"""The model cache: where it is, and that no failure, kill or race leaves half a model in it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from svip_adapters.errors import HostVersionError
from svip_adapters.evaluation.extras import import_extra
from svip_adapters.evaluation.hosts import model_files
from svip_adapters.evaluation.hosts.model_files import ModelError


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SVIP_ADAPTERS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model_files.cache_dir() == tmp_path / "svip-adapters"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert model_files.cache_dir() == Path.home() / ".cache" / "svip-adapters"
    monkeypatch.setenv("SVIP_ADAPTERS_CACHE", str(tmp_path / "own"))
    assert model_files.cache_dir() == tmp_path / "own"


def test_cache_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="SVIP_ADAPTERS_CACHE"):
        model_files.build_once(tmp_path / "file" / "model", lambda scratch: None)


def fail_full(scratch: Path) -> None:
    (scratch / "half").write_text("x")
    raise OSError(errno.ENOSPC, "No space left on device")


def fail_interrupted(scratch: Path) -> None:
    (scratch / "half").write_text("x")
    raise KeyboardInterrupt


@pytest.mark.parametrize(("build", "error"), [(fail_full, ModelError), (fail_interrupted, KeyboardInterrupt)])
def test_failed_build_leaves_nothing(tmp_path: Path, build: object, error: type[BaseException]) -> None:
    with pytest.raises(error):
        model_files.build_once(tmp_path / "model", build)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_killed_build_is_begun_again(tmp_path: Path) -> None:
    """A process that dies half-way leaves no model; what it did leave is removed once it is old."""
    script = (
        "import os, pathlib, sys\n"
        "from svip_adapters.evaluation.hosts.model_files import build_once\n"
        "build_once(pathlib.Path(sys.argv[1]), lambda scratch: (scratch / 'half').touch() or os._exit(9))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "model")], check=False)
    assert done.returncode == 9
    (leftover,) = tmp_path.iterdir()
    assert leftover.name != "model"
    old = time.time() - 2 * model_files.LEFTOVER_SECONDS
    os.utime(leftover, (old, old))
    built = model_files.build_once(tmp_path / "model", lambda scratch: (scratch / "whole").touch())
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert [p.name for p in built.iterdir()] == ["whole"]


def test_two_builds_at_once(tmp_path: Path) -> None:
    """The one that finishes first wins, and the other uses its result."""

    def slower(scratch: Path) -> None:
        (scratch / "mine").touch()
        model_files.build_once(tmp_path / "model", lambda other: (other / "theirs").touch())

    built = model_files.build_once(tmp_path / "model", slower)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert [p.name for p in built.iterdir()] == ["theirs"]


def test_missing_extra() -> None:
    with pytest.raises(HostVersionError, match=r"pip install 'svip-adapters\[eval\]'"):
        import_extra("no_such_module_at_all.part")
