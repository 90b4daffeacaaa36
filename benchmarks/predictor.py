"""Gain of stopping drafts early by a predictor: `python benchmarks/predictor.py [--quick]`; half an hour on two cores.

The bundled pair decodes by rule fsd-coupled on js, greedily and at temperature 0.6, at three thresholds each. Each
temperature runs in a process of its own, on one thread. Training, tuning and test problems are disjoint. Prints tables,
and writes all results to `--out` as JSON.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lib.common.machine import machine_facts
from lib.common.results import write_and_print
from lib.stopping.claims import as_markdown, name_of
from lib.stopping.world import Size

_CELLS: Mapping[float, Sequence[float]] = {0.0: (0.02, 0.08, 0.2), 0.6: (0.02, 0.05, 0.1)}  # thresholds by temperature
PARTS = ("contest", "delayed", "counts", "replay", "ablation", "forecast", "step")
_FULL = Size(
    training=2_000, tuning=64, test=800, counted=128, timed=40, timed_delayed=16, repeats=2, stepped=12, trials=4
)
_QUICK = Size(
    training=120,
    tuning=6,
    test=24,
    counted=12,
    timed=4,
    timed_delayed=2,
    repeats=1,
    stepped=2,
    trials=1,
    random_rows=500,
    all_rivals=False,
)


def measure(temperature: float, thresholds: Sequence[float], size: Size, parts: Sequence[str]) -> list[dict[str, Any]]:
    """Measures the cells of one temperature; runs in a process of its own."""
    import torch
    from transformers.utils import logging

    from lib.stopping.cell import Cell
    from lib.stopping.world import World

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        world = World(temperature, thresholds, size, Path(folder))
        for threshold in thresholds:
            cell = Cell(world, threshold)
            results: dict[str, Any] = {"temperature": temperature, "threshold": threshold}
            seconds: dict[str, float] = {}
            for part in parts:
                began = time.perf_counter()
                results[part] = getattr(cell, part)()
                seconds[part] = time.perf_counter() - began
                print(f"{name_of(results)}: {part}, {seconds[part]:.0f} s", flush=True)
            cells.append(results | {"seconds": seconds})
    return cells


def report(size: Size, parts: Sequence[str], cells: Mapping[float, Sequence[float]]) -> dict[str, Any]:
    began, machine = time.perf_counter(), machine_facts()
    with ProcessPoolExecutor(len(cells), multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(measure, t, thresholds, size, parts) for t, thresholds in cells.items()]
        measured = [cell for future in running for cell in future.result()]
    return {
        "machine": machine,
        "command": sys.argv,
        "size": asdict(size),
        "cells": measured,
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run at one T each, whose numbers mean nothing")
    parser.add_argument("--problems", type=int, help="how many test problems are timed")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "predictor.json")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # before any worker process imports torch
    size = _QUICK if options.quick else _FULL
    if options.problems:
        size = replace(size, timed=options.problems, timed_delayed=options.problems)
    cells = {t: thresholds[1:2] for t, thresholds in _CELLS.items()} if options.quick else _CELLS
    results = report(size, options.parts, cells)
    write_and_print(results, options.out, as_markdown(results))


if __name__ == "__main__":
    main()
