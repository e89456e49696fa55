"""Public prompt sets: fetched from their repositories at a pinned commit, checked, cached; never shipped."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from .errors import BenchError
from .hosts.model_files import cache_dir

__all__ = ["SOURCES", "Source", "fetch", "local_files"]

HOST = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Source:
    """One file of a public GitHub repository.

    Attributes:
        repository: ``owner/name``. commit: full hash. path: inside it. sha256: of the file's bytes.
    """

    repository: str
    commit: str
    path: str
    sha256: str

    @property
    def url(self) -> str:
        """Where the file is downloaded from."""
        return f"{HOST}/{self.repository}/{self.commit}/{self.path}"


def _eagle(name: str, sha256: str) -> Source:
    commit = "cb7e0841fe0c206c6ed74a197ad5e2a1f13f5a2b"
    return Source("SafeAILab/EAGLE", commit, f"eagle/data/{name}/question.jsonl", sha256)


SOURCES = {
    "mt_bench": Source(
        "lm-sys/FastChat",
        "0e6d3e4beaab66f4d3f93db72541a4abab8af28d",
        "fastchat/llm_judge/data/mt_bench/question.jsonl",
        "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
    ),
    "spec_bench": Source(
        "hemingkx/Spec-Bench",
        "fd2c1cd7d2201ef71db4c5f4e455008f017967bf",
        "data/spec_bench/question.jsonl",
        "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
    ),
    "humaneval": _eagle("humaneval", "ce0244e2b228339e9a11afc63a151719beede1e389fdaec7cd9751d33902180e"),
    "gsm8k": _eagle("gsm8k", "a55920b2f2aac724241124c59e5b8e8168dbbeb2ab0fdbee17d5b0ab6db5ff27"),
    "alpaca": _eagle("alpaca", "8ad3e5a7fc61b88d8e25edb81a52a2ce00a04494d5694c122cb11a5cc26a00df"),
    "qa": _eagle("qa", "04252e41ab00bcc03b11940b4a3766cf40ae0b76a09c4f56968ba952f0b029f3"),
    "sum": _eagle("sum", "916876f0c42f938a944de96eed16e51425f29f27438cca5c9ef4737c0fedf771"),
}


def fetch(name: str, *, cache: Path | None = None) -> Path:
    """Path of a prompt set's file; downloaded once, and verified every time.

    Args:
        name: a key of ``SOURCES``.
        cache: folder to keep it in; the user's cache folder when None.

    Raises:
        BenchError: no download, or other bytes than the pinned ones.
    """
    source = SOURCES[name]
    path = (cache or cache_dir() / "prompts") / f"{name}-{source.sha256[:12]}.jsonl"
    try:
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == source.sha256:
            return path
        content = _download(name, source)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(content)
        os.replace(part.name, path)
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(
            f"could not get the prompt set {name!r} from {source.url} ({error}); check the network and the "
            f"cache folder {path.parent}, or put the file at DIR/{name}.jsonl and pass --data DIR, "
            "or use --prompts builtin."
        ) from error
    return path


def local_files(name: str, folder: Path) -> list[Path]:
    """Files of a prompt set in a user's folder: ``<name>.jsonl``, or for spec_bench its categories apart.

    Raises:
        BenchError: they are not there.
    """
    whole = folder / f"{name}.jsonl"
    if whole.is_file():
        return [whole]
    parts = [folder / f"{part}.jsonl" for part in ("mt_bench", "qa", "sum")]
    parts = [*parts[:1], *sorted(folder.glob("spec_bench_*.jsonl")), *parts[1:]]
    if name == "spec_bench" and len(parts) > 3 and all(part.is_file() for part in parts):
        return parts
    also = (
        " (or spec_bench_*.jsonl with mt_bench.jsonl, qa.jsonl and sum.jsonl)" if name == "spec_bench" else ""
    )
    raise BenchError(
        f"expected {whole}{also}, found no such file; put it there, or leave out --data to download it."
    )


def _download(name: str, source: Source) -> bytes:
    with urllib.request.urlopen(source.url, timeout=30) as response:
        content: bytes = response.read()
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise BenchError(
            f"the prompt set {name!r} should have SHA-256 {source.sha256}, found {found} at {source.url}; "
            f"something on the way altered it. Get the file by other means, put it at DIR/{name}.jsonl and "
            "pass --data DIR."
        )
    return content
