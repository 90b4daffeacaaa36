"""Traces as large as you like, for their size alone: made of real ones, or drawn at random.

Knows traces along the target and how they are written. What such traces say does not change how long a sweep takes,
only how many of their rows are rejections.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fsd_collectors.manifest import Manifest
from fsd_collectors.replay import StopPolicy
from fsd_collectors.store.reading import Traces
from fsd_collectors.store.writing import TraceWriter

_JITTER = 0.01  # so that nothing repeats, which would compress as no real trace does
_SHARD = 1_000_000  # rows drawn at a time
_LENGTH = 100  # tokens of a completion drawn, on average
_SAME = 0.7  # share of them where x = y


class Enlarger:
    """Makes portions of `problems` completions each out of small real traces along the target."""

    def __init__(self, real: Traces, problems: int) -> None:
        self._tokens = pa.Table.from_batches(real.tokens.to_batches())
        self._completions = pa.Table.from_batches(real.completions.to_batches())
        self._real, self._problems = real.manifest, problems
        counts = np.asarray(self._completions["emitted"])
        self._begins, self._counts = np.cumsum(counts) - counts, counts
        self._random = np.random.default_rng(0)

    def manifest(self, portions: int) -> Manifest:
        task = self._real.task.model_copy(update={"problems": portions * self._problems})
        return self._real.model_copy(update={"task": task, "portion": self._problems})

    def portion(self, index: int, run: str) -> dict[str, pa.Table]:
        chosen = self._random.integers(len(self._counts), size=self._problems)
        ids = index * self._problems + np.arange(self._problems)
        rows = np.concatenate([self._begins[i] + np.arange(self._counts[i]) for i in chosen])
        tokens = _jittered(self._tokens.take(pa.array(rows)), self._random)
        return {
            "tokens": _owned(tokens, run, np.repeat(ids, self._counts[chosen])),
            "completions": _owned(self._completions.take(pa.array(chosen)), run, ids),
        }


def _jittered(table: pa.Table, random: np.random.Generator) -> pa.Table:
    for i, field in enumerate(table.schema):
        if field.type == pa.float32():
            off = random.normal(1.0, _JITTER, len(table)).astype(np.float32)
            table = table.set_column(i, field, pa.array(np.asarray(table[i]) * off))
    return table


def _owned(table: pa.Table, run: str, problems: np.ndarray) -> pa.Table:
    for name, values in (
        ("run", pa.array([run]).take(pa.array(np.zeros(len(table), np.int64)))),
        ("problem", problems),
    ):
        i = table.schema.get_field_index(name)
        table = table.set_column(i, table.schema.field(i), pa.array(values))
    return table


@dataclass(frozen=True)
class _Facts:
    divergences: tuple[str, ...]
    way: str = "along-target"


@dataclass(frozen=True)
class Drawn:
    """Rows that are drawn when they are asked for, the same ones every time: any number fits into memory."""

    rows: int
    manifest: _Facts

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]:
        for shard in range(-(-self.rows // _SHARD)):
            made = _shard(shard, min(_SHARD, self.rows - shard * _SHARD), self.manifest.divergences)
            yield pa.table({name: made[name] for name in columns})


def drawn(rows: int, divergences: Sequence[str]) -> Drawn:
    return Drawn(rows, _Facts(tuple(divergences)))


def _shard(seed: int, rows: int, divergences: Sequence[str]) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    begins = rng.random(rows) < 1 / _LENGTH
    begins[0] = True
    starts = np.flatnonzero(begins)
    position = np.arange(rows) - np.repeat(starts, np.diff(starts, append=rows))
    same = rng.random(rows) < _SAME
    made: dict[str, Any] = {"position": position.astype(np.int32), "same_token": same}
    made["sd_accepts"] = same | (rng.random(rows) < 0.1)
    made["draft_probability"] = rng.random(rows, np.float32)
    for name in divergences:
        made[name] = np.exp(1.5 * rng.standard_normal(rows, np.float32) - np.where(same, 4.0, 2.0)).astype(np.float32)
    return made


def hesitant() -> StopPolicy:
    """Stops a draft behind a token that the draft gave less than .3."""
    return StopPolicy(("draft_probability",), lambda of: np.asarray(of["draft_probability"] < 0.3))


def written(enlarger: Enlarger, folder: Path, portions: int) -> Iterator[tuple[int, float]]:
    """Writes the portions and yields the rows and the seconds each took to write; making it is not counted."""
    manifest = enlarger.manifest(portions)
    with TraceWriter(folder, manifest) as writer:
        for index in range(portions):
            tables = enlarger.portion(index, manifest.run)
            began = time.perf_counter()
            writer.write(index, tables)
            yield len(tables["tokens"]), time.perf_counter() - began
