"""Synthetic traces along the target of any size, made of real ones or drawn at random.

The time of a sweep depends on how many of the rows are rejections, and not on anything else that the rows hold.
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

_JITTER = 0.01  # relative noise, since repeated values would compress better than real ones
_SHARD = 1_000_000  # rows drawn at a time
_LENGTH = 100  # tokens of a random completion, on average
_SAME = 0.7  # share of tokens where draft and target choose the same


class Enlarger:
    """Makes portions of `problems` completions each from small real traces along the target."""

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
            "tokens": _with_owner(tokens, run, np.repeat(ids, self._counts[chosen])),
            "completions": _with_owner(self._completions.take(pa.array(chosen)), run, ids),
        }


def _jittered(table: pa.Table, random: np.random.Generator) -> pa.Table:
    for i, field in enumerate(table.schema):
        if field.type == pa.float32():
            factors = random.normal(1.0, _JITTER, len(table)).astype(np.float32)
            table = table.set_column(i, field, pa.array(np.asarray(table[i]) * factors))
    return table


def _with_owner(table: pa.Table, run: str, problems: np.ndarray) -> pa.Table:
    """Returns the table with its columns `run` and `problem` replaced."""
    for name, values in (
        ("run", pa.array([run]).take(pa.array(np.zeros(len(table), np.int64)))),
        ("problem", problems),
    ):
        i = table.schema.get_field_index(name)
        table = table.set_column(i, table.schema.field(i), pa.array(values))
    return table


@dataclass(frozen=True)
class _Manifest:
    divergences: tuple[str, ...]
    way: str = "along-target"


@dataclass(frozen=True)
class RandomTraces:
    """Random rows that are drawn when they are read, the same ones every time, so that any number fits into memory."""

    rows: int
    manifest: _Manifest

    @classmethod
    def of(cls, rows: int, divergences: Sequence[str]) -> RandomTraces:
        return cls(rows, _Manifest(tuple(divergences)))

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]:
        for shard in range(-(-self.rows // _SHARD)):
            values = _shard(shard, min(_SHARD, self.rows - shard * _SHARD), self.manifest.divergences)
            yield pa.table({name: values[name] for name in columns})


def _shard(seed: int, rows: int, divergences: Sequence[str]) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    begins = rng.random(rows) < 1 / _LENGTH
    begins[0] = True
    starts = np.flatnonzero(begins)
    position = np.arange(rows) - np.repeat(starts, np.diff(starts, append=rows))
    same = rng.random(rows) < _SAME
    values: dict[str, Any] = {"position": position.astype(np.int32), "same_token": same}
    values["sd_accepts"] = same | (rng.random(rows) < 0.1)
    values["draft_probability"] = rng.random(rows, np.float32)
    for name in divergences:
        normal = 1.5 * rng.standard_normal(rows, np.float32)
        values[name] = np.exp(normal - np.where(same, 4.0, 2.0)).astype(np.float32)
    return values


def stop_below_likelihood() -> StopPolicy:
    """Returns a policy that ends a draft after a token with a draft probability below .3."""
    return StopPolicy(("draft_probability",), lambda columns: np.asarray(columns["draft_probability"] < 0.3))


def write_portions(enlarger: Enlarger, folder: Path, portions: int) -> Iterator[tuple[int, float]]:
    """Writes the portions, and yields each one's rows and the seconds of writing it, without those of making it."""
    manifest = enlarger.manifest(portions)
    with TraceWriter(folder, manifest) as writer:
        for index in range(portions):
            tables = enlarger.portion(index, manifest.run)
            began = time.perf_counter()
            writer.write(index, tables)
            yield len(tables["tokens"]), time.perf_counter() - began
