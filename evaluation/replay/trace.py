"""A trace on disk: Parquet, one row a draft distribution (see ``Nodes``), the texts in the file's metadata.

Columns: ``text`` (number of the text), ``position`` (tokens of the answer before the draft), ``parent``,
``child``, ``tokens`` and ``logp`` (lists of k), ``entropy`` (nats), ``top1_prob``, ``margin``. ``parent`` is
a row's number within its text. A sampled trace (schema 2) has ``accept`` and ``scaled`` as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import BenchError
from ..extras import import_extra
from .nodes import SAMPLED, SIGNALS, Nodes

__all__ = ["Recorded", "Text", "Trace", "read_trace", "write_trace"]

SCHEMA, READ = 2, (1, 2)
KEY = b"svip-bench trace"


@dataclass(frozen=True)
class Recorded:
    """What a trace belongs to.

    Attributes:
        host, target, draft, dtype, versions: as in ``run.json``.
        prompts: name and digest of the prompt set. max_new_tokens: a turn.
        length: most tokens of a chain, or levels of a tree.
        top_k: children kept of each distribution; the width of a tree's levels.
        floor: of a tree, all nodes are recorded whose path is likelier than this, and the host's own tree.
        limits: what the host drafts by default, see ``Host.limits``.
        temperature: that target and draft sample at; 0 is greedy. seed: of a sampled trace.
    """

    host: str
    target: str
    draft: str
    dtype: str
    versions: dict[str, str]
    prompts: dict[str, str]
    max_new_tokens: int
    length: int
    top_k: int
    floor: float
    limits: dict[str, Any]
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Text:
    """One turn: the target's own answer, and what would be drafted at each of its positions.

    Attributes:
        ids: the answer. beyond: what would follow it but for the limit of new tokens; of a greedy answer.
        limit: of new tokens.
    """

    task: str
    question: int | str
    turn: int
    prompt_length: int
    ids: list[int]
    beyond: list[int]
    limit: int
    nodes: Nodes

    @property
    def said(self) -> list[int]:
        """The answer and what would follow it."""
        return [*self.ids, *self.beyond]


@dataclass(frozen=True)
class Trace:
    """All texts of one recording."""

    recorded: Recorded
    texts: list[Text]

    @property
    def tasks(self) -> list[str]:
        """In order of appearance."""
        return list(dict.fromkeys(text.task for text in self.texts))


def write_trace(path: Path, recorded: Recorded, texts: Sequence[Text]) -> None:
    """Write a trace in one step: a reader finds the old file or the new one, never a half."""
    pa, parquet = import_extra("pyarrow"), import_extra("pyarrow.parquet")
    columns: dict[str, list[Any]] = {}
    for number, text in enumerate(texts):
        for name, values in _columns(number, text.nodes).items():
            columns.setdefault(name, []).append(values)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    lists = {name: joined.pop(name) for name in ("tokens", "logp")}
    arrays = {name: pa.array(values) for name, values in joined.items()}
    for name, values in lists.items():
        arrays[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), recorded.top_k)
    about = [{k: v for k, v in vars(text).items() if k != "nodes"} for text in texts]
    head = {"schema": SCHEMA, "recorded": asdict(recorded), "texts": about}
    table = pa.table(arrays).replace_schema_metadata({KEY: json.dumps(head)})
    part = path.with_name(path.name + ".part")
    parquet.write_table(table, part, compression="zstd")
    os.replace(part, path)


def _columns(number: int, nodes: Nodes) -> dict[str, np.ndarray[Any, Any]]:
    counts = np.diff(nodes.starts)
    return {
        "text": np.full(len(nodes), number, dtype=np.int32),
        "position": np.repeat(np.arange(nodes.positions, dtype=np.int32), counts),
        "parent": nodes.parents.numpy().astype(np.int32),
        "child": nodes.children.numpy().astype(np.int16),
        "tokens": nodes.tokens.numpy().astype(np.int32),
        "logp": nodes.logp.numpy(),
        **{name: getattr(nodes, name).numpy() for name in _signals(nodes.accept is not None)},
    }


def _signals(sampled: bool) -> tuple[str, ...]:
    return (*SIGNALS, *SAMPLED) if sampled else SIGNALS


def read_trace(path: Path) -> Trace:
    """Read what ``write_trace`` wrote.

    Raises:
        BenchError: no such file, or another one.
    """
    parquet = import_extra("pyarrow.parquet")
    try:
        table = parquet.read_table(path)
        head = json.loads(table.schema.metadata[KEY])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(
            f"expected a trace at {path}, found: {error}; write one with svip-bench record --out {path}."
        ) from error
    if head["schema"] not in READ:
        raise BenchError(
            f"expected a trace of schema {' or '.join(map(str, READ))} at {path}, found {head['schema']}; "
            "record it again."
        )
    recorded = Recorded(**head["recorded"])
    signals = _signals(recorded.temperature > 0)
    flat = {name: table[name].to_numpy() for name in ("text", "position", "parent", "child", *signals)}
    for name in ("tokens", "logp"):
        values = table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        flat[name] = values.reshape(-1, recorded.top_k)
    ends = np.searchsorted(flat["text"], np.arange(len(head["texts"]) + 1))
    texts = [
        Text(**about, nodes=_nodes({name: v[ends[i] : ends[i + 1]] for name, v in flat.items()}, about))
        for i, about in enumerate(head["texts"])
    ]
    return Trace(recorded, texts)


def _nodes(columns: dict[str, np.ndarray[Any, Any]], about: dict[str, Any]) -> Nodes:
    starts = np.searchsorted(columns["position"], np.arange(len(about["ids"]) + 1)).tolist()
    tensors = {name: torch.from_numpy(np.array(values)) for name, values in columns.items()}
    return Nodes(
        starts,
        tensors["parent"].long(),
        tensors["child"].long(),
        tensors["tokens"].long(),
        *(tensors[name] for name in ("logp", *SIGNALS)),
        **{name: tensors[name] for name in SAMPLED if name in tensors},
    )
