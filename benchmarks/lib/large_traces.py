"""Seconds and memory of writing, sweeping and describing traces of millions of rows, each in its own process.

Traces of any size along the target are made of real ones or drawn at random. The time of a sweep depends on how many of
the rows are rejections, and not on anything else that the rows hold.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from fsd_calib import collect_traces, load_task, load_traces
from fsd_collectors.manifest import Manifest
from fsd_collectors.replay import StopPolicy, sweep
from fsd_collectors.report.description import summarise
from fsd_collectors.store.reading import Traces
from fsd_collectors.store.writing import TraceWriter
from fsd_data import pair_paths
from fsd_decoding.loading import load_tokenizer

T = TypeVar("T")
_IMPORTED = [
    "transformers.utils", "fsd_calib.tasks.registry", "fsd_collectors.collection.run",
    "fsd_collectors.report.description", "fsd_collectors.replay",
]  # fmt: skip
_PORTION = 4096  # problems of a large shard, with about 250,000 rows
_JITTER = 0.01  # relative noise, since repeated values would compress better than real ones
_SHARD = 1_000_000  # rows drawn at a time
_LENGTH = 100  # tokens of a random completion, on average
_SAME = 0.7  # share of tokens where draft and target choose the same
_THRESHOLDS, _LENGTHS = np.geomspace(1e-4, 1.0, 50), range(1, 9)
_SWEEPS = (  # rules, scores, and whether a policy stops drafts
    (("fsd-coupled",), ("js",), False),
    (("fsd", "fsd-sd", "fsd-coupled"), ("js", "tv", "kl_qp"), False),
    (("fsd-coupled",), ("js",), True),
)


@dataclass(frozen=True)
class IsolatedRun(Generic[T]):
    """What the work returned, its seconds without imports, and the peak memory of its process."""

    returned: T
    seconds: float
    peak_gb: float


def run_isolated(work: Callable[..., T], *arguments: object) -> IsolatedRun[T]:
    """Runs `work`, which must be picklable like its arguments, in a new process.

    It is forked from one that has done nothing but imports, which take most of a smoke run otherwise. Its peak leaves
    out most of the libraries' own code (.2 GB), which the two share.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, work, arguments).result()


def _measure(work: Callable[..., T], arguments: tuple[object, ...]) -> IsolatedRun[T]:
    began = time.perf_counter()
    returned = work(*arguments)
    return IsolatedRun(returned, time.perf_counter() - began, _peak_gb())


def _peak_gb() -> float:
    """Returns the peak resident memory.

    On Linux it is the kernel's own mark, since `ru_maxrss` counts what the parent held when it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        mark = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(mark.split()[1]) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)


def replay_speed(rows: int, sweeps: int) -> list[dict[str, Any]]:
    """Measures the first of the sweeps over random rows; the seconds of drawing the rows are subtracted."""
    return [_measure_sweep(rows, *grid) for grid in _SWEEPS[:sweeps]]


def _measure_sweep(rows: int, rules: tuple[str, ...], scores: tuple[str, ...], stops: bool) -> dict[str, Any]:
    drawing = run_isolated(_draw, rows, scores, stops)
    sweeping = run_isolated(_sweep_random, rows, rules, scores, stops)
    return {
        "rows": rows, "rules": rules, "scores": scores, "stop_policy": stops, "cells": sweeping.returned,
        "seconds": sweeping.seconds - drawing.seconds, "peak_gb": sweeping.peak_gb,
    }  # fmt: skip


def _draw(rows: int, scores: tuple[str, ...], stops: bool) -> int:
    columns = [
        "position", "same_token", "sd_accepts", *scores, *(stop_below_likelihood().columns if stops else ()),
    ]  # fmt: skip
    return sum(table.num_rows for table in RandomTraces(rows, scores).batches(columns))


def _sweep_random(rows: int, rules: tuple[str, ...], scores: tuple[str, ...], stops: bool) -> int:
    policy = stop_below_likelihood() if stops else None
    return len(sweep(RandomTraces(rows, scores), rules, scores, _THRESHOLDS, _LENGTHS, policy))


def large_traces(folder: Path | None, portions: int, real: int) -> dict[str, Any]:
    """Measures writing, describing and sweeping a large trace, which is made of the traces of `real` problems."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        traces = Path(home, "large")
        writing = run_isolated(_write, Path(home), traces, portions, real)
        describing, sweeping = run_isolated(_describe, traces), run_isolated(_sweep, traces)
        size = sum(file.stat().st_size for file in traces.rglob("*.parquet"))
        rows = describing.returned
        assert rows == sum(count for count, _ in writing.returned)
        return {
            "rows": rows,
            "bytes_a_row": size / rows,
            "rows_written_per_second": median(count / seconds for count, seconds in writing.returned),
            "describe": _cost(describing),
            "sweep": _cost(sweeping) | {"cells": sweeping.returned},
        }


def _cost(run: IsolatedRun[int]) -> dict[str, float]:
    return {"seconds": run.seconds, "peak_gb": run.peak_gb}


def _write(home: Path, folder: Path, portions: int, problems: int) -> list[tuple[int, float]]:
    """Returns each portion's rows and the seconds of writing it, without those of making it."""
    target, draft = pair_paths()
    task = load_task("arithmetic", limit=problems, tokenizer=load_tokenizer(target))
    enlarger = Enlarger(collect_traces(task, target=target, draft=draft, out=home / "real"), portions)
    written = []
    with TraceWriter(folder, enlarger.manifest) as writer:
        for index in range(portions):
            tables = enlarger.portion(index)
            began = time.perf_counter()
            writer.write(index, tables)
            written.append((len(tables["tokens"]), time.perf_counter() - began))
    return written


def _describe(folder: Path) -> int:
    return summarise(load_traces(folder)).rows


def _sweep(folder: Path) -> int:
    return len(sweep(load_traces(folder), thresholds=_THRESHOLDS, draft_lengths=_LENGTHS))


# --- synthetic traces -------------------------------------------------------------------------------------


class Enlarger:
    """Makes portions of many completions each from small real traces along the target."""

    def __init__(self, real: Traces, portions: int) -> None:
        self._tokens = pa.Table.from_batches(real.tokens.to_batches())
        self._completions = pa.Table.from_batches(real.completions.to_batches())
        task = real.manifest.task.model_copy(update={"problems": portions * _PORTION})
        self.manifest: Manifest = real.manifest.model_copy(update={"task": task, "portion": _PORTION})
        self._counts = np.asarray(self._completions["emitted"])
        self._begins = np.cumsum(self._counts) - self._counts
        self._random = np.random.default_rng(0)

    def portion(self, index: int) -> dict[str, pa.Table]:
        chosen = self._random.integers(len(self._counts), size=_PORTION)
        ids = index * _PORTION + np.arange(_PORTION)
        rows = np.concatenate([self._begins[i] + np.arange(self._counts[i]) for i in chosen])
        tokens = _jittered(self._tokens.take(pa.array(rows)), self._random)
        return {
            "tokens": _with_owner(tokens, self.manifest.run, np.repeat(ids, self._counts[chosen])),
            "completions": _with_owner(self._completions.take(pa.array(chosen)), self.manifest.run, ids),
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


class RandomTraces:
    """Random rows that are drawn when they are read, the same ones every time, so that any number fits into memory."""

    def __init__(self, rows: int, scores: Sequence[str]) -> None:
        self.rows, self.manifest = rows, SimpleNamespace(scores=tuple(scores), way="along-target")

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]:
        for shard in range(-(-self.rows // _SHARD)):
            values = _shard(shard, min(_SHARD, self.rows - shard * _SHARD), self.manifest.scores)
            yield pa.table({name: values[name] for name in columns})


def _shard(seed: int, rows: int, scores: Sequence[str]) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    begins = rng.random(rows) < 1 / _LENGTH
    begins[0] = True
    starts = np.flatnonzero(begins)
    position = np.arange(rows) - np.repeat(starts, np.diff(starts, append=rows))
    same = rng.random(rows) < _SAME
    values: dict[str, Any] = {"position": position.astype(np.int32), "same_token": same}
    values["sd_accepts"] = same | (rng.random(rows) < 0.1)
    values["draft_probability"] = rng.random(rows, np.float32)
    for name in scores:
        normal = 1.5 * rng.standard_normal(rows, np.float32)
        values[name] = np.exp(normal - np.where(same, 4.0, 2.0)).astype(np.float32)
    return values


def stop_below_likelihood() -> StopPolicy:
    """Returns a policy that ends a draft after a token with a draft probability below .3."""
    return StopPolicy(("draft_probability",), lambda columns: np.asarray(columns["draft_probability"] < 0.3))
