"""Traces of millions of rows: written, swept and described, each in a process of its own.

Knows what is done with them and how much of it. Where the rows come from is `synthetic.py`.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fsd_calib import collect_traces, load_task, load_traces
from fsd_collectors.replay import sweep
from fsd_collectors.report.summary import summarise
from fsd_data import pair_paths
from fsd_decoding.loading import load_tokenizer
from lib.common.memory import alone
from lib.traces.synthetic import Enlarger, drawn, hesitant, written

_PORTION = 4096  # problems of a large shard: some 250,000 rows
_THRESHOLDS, _LENGTHS = np.geomspace(1e-4, 1.0, 50), range(1, 9)


def replay_speed(rows: int) -> list[dict[str, Any]]:
    """Seconds and memory of sweeps over rows drawn at random; drawing them is timed apart."""
    grids = [(("fsd-coupled",), ("js",), False), (("fsd", "fsd-sd", "fsd-coupled"), ("js", "tv", "kl_qp"), False)]
    return [_swept(rows, *grid) for grid in [*grids, (("fsd-coupled",), ("js",), True)]]


def _swept(rows: int, rules: tuple[str, ...], divergences: tuple[str, ...], stops: bool) -> dict[str, Any]:
    drawing = alone(_draw, rows, divergences, stops)
    ran = alone(_sweep_drawn, rows, rules, divergences, stops)
    return {
        "rows": rows, "rules": rules, "divergences": divergences, "stop_policy": stops, "cells": ran.found,
        "seconds": ran.seconds - drawing.seconds, "peak_gb": ran.peak_gb,
    }  # fmt: skip


def _draw(rows: int, divergences: tuple[str, ...], stops: bool) -> int:
    columns = ["position", "same_token", "sd_accepts", *divergences, *(hesitant().columns if stops else ())]
    return sum(table.num_rows for table in drawn(rows, divergences).batches(columns))


def _sweep_drawn(rows: int, rules: tuple[str, ...], divergences: tuple[str, ...], stops: bool) -> int:
    policy = hesitant() if stops else None
    return len(sweep(drawn(rows, divergences), rules, divergences, _THRESHOLDS, _LENGTHS, policy))


def large(folder: Path | None, portions: int, real: int) -> dict[str, Any]:
    """Rows written a second, and what describing and sweeping all of them takes; they are made of `real` problems."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        traces = Path(home, "large")
        writing = alone(_write, Path(home), traces, portions, real)
        described, swept = alone(_describe, traces), alone(_sweep, traces)
        size = sum(file.stat().st_size for file in traces.rglob("*.parquet"))
        rows = described.found
        assert rows == sum(count for count, _ in writing.found)
        return {
            "rows": rows,
            "bytes_a_row": size / rows,
            "rows_written_per_second": median(count / seconds for count, seconds in writing.found),
            "describe": _cost(described),
            "sweep": _cost(swept) | {"cells": swept.found},
        }


def _cost(ran: Any) -> dict[str, float]:
    return {name: value for name, value in asdict(ran).items() if name != "found"}


def _write(home: Path, folder: Path, portions: int, problems: int) -> list[tuple[int, float]]:
    target, draft = pair_paths()
    task = load_task("arithmetic", limit=problems, tokenizer=load_tokenizer(target))
    real = collect_traces(task, target=target, draft=draft, out=home / "real")
    return list(written(Enlarger(real, _PORTION), folder, portions))


def _describe(folder: Path) -> int:
    return summarise(load_traces(folder)).rows


def _sweep(folder: Path) -> int:
    return len(sweep(load_traces(folder), thresholds=_THRESHOLDS, draft_lengths=_LENGTHS))
