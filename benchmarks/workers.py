"""What worker processes gain and cost: `python benchmarks/workers.py`.

Prints claims, and writes all results to `--out` as JSON. From the overheads and the decodings that
`benchmarks/command.py` counted it projects what workers would make of a pair of real size, which is no measurement.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers.utils import logging

from lib.common.claims import Claim, claims_table
from lib.common.machine import machine_facts
from lib.common.results import write_and_print
from lib.workers.pairs_on_disk import bundled_pair, random_pair_in
from lib.workers.parent import results_per_second, seconds_per_batch
from lib.workers.projection import Counts, Overheads, RealPair, project
from lib.workers.speeds import BATCH, speeds, starting

_COUNTED = Path(__file__).parent / "results" / "command.json"
_PROJECTED = (1, 8, 64)


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    problems: int  # of the bundled pair
    piece: int  # of them by one call
    deep_problems: int  # of the random pair
    deep: tuple[int, int, int]  # its layers, width and new tokens
    repeats: int
    starts: int
    results: int  # of workers that only sleep


_FULL = Plan(1024, 512, 128, (12, 512, 64), 9, 3, 20_000)
_QUICK = Plan(32, 32, 8, (3, 64, 4), 1, 1, 400)


def measure(plan: Plan, workers: int) -> dict[str, Any]:
    pair = bundled_pair(plan.problems)
    with TemporaryDirectory() as folder:
        deep = random_pair_in(Path(folder), plan.deep_problems, *plan.deep)
        timed = [
            speeds(pair, (1, workers), plan.piece, plan.repeats),
            speeds(deep, (1, workers), plan.deep_problems, plan.repeats),
        ]
    many = bundled_pair(plan.results)
    started = starting(pair, workers, plan.starts)
    batches = {count: seconds_per_batch(count, plan.results // 20) for count in (1, workers)}
    parent = [results_per_second(many, workers, seconds) for seconds in (0.0, 0.02)]
    costs = Overheads(batches[workers], 1 / _fastest(parent), started["first_batch_seconds"].median)
    return {
        "speeds": timed, "starting": started, "seconds_per_batch": batches, "parent": parent,
        "projection": projection(costs),
    }  # fmt: skip


def _fastest(parent: Sequence[Mapping[str, Any]]) -> float:
    return max(float(run["results_per_second"]) for run in parent)


def projection(costs: Overheads) -> dict[str, Any]:
    """Returns what follows from overheads and counted decodings; nothing is measured for it."""
    pair, counts = RealPair(), Counts.of(json.loads(_COUNTED.read_text())["runs"][0])
    jobs = [project(pair, counts, costs, workers, BATCH) for workers in _PROJECTED]
    return {"assumed": pair, "counts": counts, "overheads": costs, "rows": BATCH, "jobs": jobs}


def claims(results: Mapping[str, Any], workers: int) -> Iterator[Claim]:
    for timed in results["speeds"]:
        ratio = timed["ratio_to_one"][str(workers)]
        yield Claim.faster(f"{workers} workers / one process, tokens/s, {timed['pair']} pair", 1.3, ratio)
    yield Claim.at_least("results a second through claim, cache and grading", 2000, _fastest(results["parent"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose numbers mean nothing")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the one process")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "workers.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    began, machine = time.perf_counter(), machine_facts()
    measured = measure(_QUICK if options.quick else _FULL, options.workers)
    judged = list(claims(measured, options.workers))
    results = {"machine": machine, "quick": options.quick, "claims": judged, **measured}
    results["seconds"] = time.perf_counter() - began
    text = "a smoke run: too few repeats for any claim" if options.quick else claims_table(judged)
    write_and_print(results, options.out, text)


if __name__ == "__main__":
    main()
