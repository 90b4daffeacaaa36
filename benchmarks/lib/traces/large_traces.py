"""Seconds and memory of writing, sweeping and describing traces of millions of rows, each in its own process."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

import numpy as np

from fsd_calib import collect_traces, load_task, load_traces
from fsd_collectors.replay import sweep
from fsd_collectors.report.description import summarise
from fsd_data import pair_paths
from fsd_decoding.loading import load_tokenizer
from lib.traces.synthetic import Enlarger, RandomTraces, stop_below_likelihood, write_portions

T = TypeVar("T")
_IMPORTED = [
    "transformers.utils", "fsd_calib.tasks.registry", "fsd_collectors.collection.run",
    "fsd_collectors.report.description", "fsd_collectors.replay",
]  # fmt: skip
_PORTION = 4096  # problems of a large shard, with about 250,000 rows
_THRESHOLDS, _LENGTHS = np.geomspace(1e-4, 1.0, 50), range(1, 9)
_SWEEPS = (  # rules, divergences, and whether a policy stops drafts
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


def _measure_sweep(rows: int, rules: tuple[str, ...], divergences: tuple[str, ...], stops: bool) -> dict[str, Any]:
    drawing = run_isolated(_draw, rows, divergences, stops)
    sweeping = run_isolated(_sweep_random, rows, rules, divergences, stops)
    return {
        "rows": rows, "rules": rules, "divergences": divergences, "stop_policy": stops, "cells": sweeping.returned,
        "seconds": sweeping.seconds - drawing.seconds, "peak_gb": sweeping.peak_gb,
    }  # fmt: skip


def _draw(rows: int, divergences: tuple[str, ...], stops: bool) -> int:
    columns = [
        "position", "same_token", "sd_accepts", *divergences, *(stop_below_likelihood().columns if stops else ()),
    ]  # fmt: skip
    return sum(table.num_rows for table in RandomTraces.of(rows, divergences).batches(columns))


def _sweep_random(rows: int, rules: tuple[str, ...], divergences: tuple[str, ...], stops: bool) -> int:
    policy = stop_below_likelihood() if stops else None
    return len(sweep(RandomTraces.of(rows, divergences), rules, divergences, _THRESHOLDS, _LENGTHS, policy))


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
    target, draft = pair_paths()
    task = load_task("arithmetic", limit=problems, tokenizer=load_tokenizer(target))
    real = collect_traces(task, target=target, draft=draft, out=home / "real")
    return list(write_portions(Enlarger(real, _PORTION), folder, portions))


def _describe(folder: Path) -> int:
    return summarise(load_traces(folder)).rows


def _sweep(folder: Path) -> int:
    return len(sweep(load_traces(folder), thresholds=_THRESHOLDS, draft_lengths=_LENGTHS))
