"""Does it pay to stop drafts early: `python benchmarks/predictor.py [--quick]`; takes half an hour on two cores.

Knows what is measured, how much of it, and what is claimed. Problems to train, to tune and to test on are disjoint.
The bundled pair, rule fsd-coupled on js, greedy and sampled, three T each; each sampling in a process of its own, on
one thread. Writes everything to `--out` as JSON, and prints tables.
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

from lib.common.machine import facts
from lib.common.written import write
from lib.stopping.claims import name_of, printed
from lib.stopping.world import Size

_CELLS: Mapping[float, Sequence[float]] = {0.0: (0.02, 0.08, 0.2), 0.6: (0.02, 0.05, 0.1)}  # by temperature, T
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


def measured(temperature: float, thresholds: Sequence[float], size: Size, parts: Sequence[str]) -> list[dict[str, Any]]:
    """The cells of one sampling, in a process of its own."""
    import torch
    from transformers.utils import logging

    from lib.stopping.cell import Cell
    from lib.stopping.world import World

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        world = World(temperature, thresholds, size, Path(folder))
        for threshold in thresholds:
            cell = Cell(world, threshold)
            made: dict[str, Any] = {"temperature": temperature, "threshold": threshold}
            seconds: dict[str, float] = {}
            for part in parts:
                began = time.perf_counter()
                made[part] = getattr(cell, part)()
                seconds[part] = time.perf_counter() - began
                print(f"{name_of(made)}: {part}, {seconds[part]:.0f} s", flush=True)
            found.append(made | {"seconds": seconds})
    return found


def report(size: Size, parts: Sequence[str], cells: Mapping[float, Sequence[float]]) -> dict[str, Any]:
    began, machine = time.perf_counter(), facts()
    with ProcessPoolExecutor(len(cells), multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(measured, t, thresholds, size, parts) for t, thresholds in cells.items()]
        found = [cell for each in running for cell in each.result()]
    return {
        "machine": machine,
        "command": sys.argv,
        "size": asdict(size),
        "cells": found,
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run, of one T a sampling: it says nothing")
    parser.add_argument("--problems", type=int, help="that are timed, of those to test on")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "predictor.json")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # before a process of ours imports torch
    size = _QUICK if options.quick else _FULL
    if options.problems:
        size = replace(size, timed=options.problems, timed_delayed=options.problems)
    cells = {t: thresholds[1:2] for t, thresholds in _CELLS.items()} if options.quick else _CELLS
    found = report(size, options.parts, cells)
    write(found, options.out, printed(found))


if __name__ == "__main__":
    main()
