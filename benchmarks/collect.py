"""The cost of traces, and how accurately their replay predicts decoding: `python benchmarks/collect.py`.

Prints tables, and writes all results to `--out` as JSON.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from lib.common.claims import Claim, claims_table
from lib.common.machine import machine_facts
from lib.common.results import write_and_print
from lib.traces.collection_speed import collection_speed
from lib.traces.large_traces import large_traces, replay_speed
from lib.traces.replay_accuracy import Compared, Grid, predictions

_RETENTION = 0.95  # the claim on replay's accuracy holds from this retention on


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    streams: tuple[tuple[int, int, int, int], ...]  # problems, problems per piece, batch size and repeats
    swept: int  # rows
    sweeps: int  # grids, of three
    portions: int  # of the large trace, with about 260,000 rows each
    real: int  # problems that the large trace is made of
    grid: Grid


_FULL = Plan(
    ((48, 24, 1, 8), (256, 256, 32, 8)), 10_000_000, 3, 400, 300,
    Grid(200, (0.0, 0.6), ("sd", "coupled"), ("fsd-coupled", "fsd-sd", "fsd"), (2, 5, 8), (0.05, 0.1, 0.2)),
)  # fmt: skip
_QUICK = Plan(((4, 2, 2, 1),), 200_000, 1, 1, 8, Grid(8, (0.0, 0.6), ("sd",), ("fsd-coupled",), (3,), (0.1,)))


def measure(plan: Plan, folder: Path | None) -> dict[str, Any]:
    return {
        "collecting": [collection_speed(*stream) for stream in plan.streams],
        "replay": replay_speed(plan.swept, plan.sweeps),
        "large": large_traces(folder, plan.portions, plan.real),
        "predictions": predictions(plan.grid),
    }


def claims(results: Mapping[str, Any]) -> Iterator[Claim]:
    for stream in results["collecting"]:
        where, ratio = f"bundled pair, batch {stream['batch']}", stream["recorded / bare time"]
        yield Claim.at_most_times(f"decoding collected on-policy / bare, seconds, {where}", 1.05, ratio)
        for way in ("reading alone", "along the target"):
            yield Claim.faster(f"{way} / on-policy, tokens/s, {where}", 5.0, stream[f"{way} / on-policy"])
    small, huge = results["replay"][0], results["large"]
    yield Claim.at_most(f"replay of {small['rows']:,} rows, {small['cells']} cells, seconds", 30.0, small["seconds"])
    yield Claim.at_most("its memory, GB", 4.0, small["peak_gb"])
    written = huge["rows_written_per_second"]
    yield Claim("rows written a second", ">= 300,000", written, written, written >= 300_000)
    for work in ("describe", "sweep"):
        yield Claim.at_most(f"{work} of {huge['rows']:,} rows on disk, memory, GB", 4.0, huge[work]["peak_gb"])
    errors = [abs(compared.error) for compared in results["predictions"] if compared.retention >= _RETENTION]
    yield Claim.at_most(
        f"worst error of replay's tokens a round, {len(errors)} settings kept {_RETENTION}", 0.05, max(errors)
    )


def predictions_table(predictions: list[Compared]) -> str:
    head = ["| temperature | rule | L | T | replay | decoded | error | retention |", "| --- " * 8 + "|"]
    return "\n".join([*head, *map(_row, predictions)])


def _row(compared: Compared) -> str:
    setting, error, retention = compared.setting, f"{compared.error:+.1%}", f"{compared.retention:.3f}"
    numbers = (f"{compared.predicted:.2f}", f"{compared.decoded:.2f}", error, retention)
    cells = (compared.temperature, setting.rule, setting.draft_length, setting.threshold, *numbers)
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose numbers mean nothing")
    parser.add_argument("--scratch", type=Path, help="folder for the large trace of 7 GB; default: the system's")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "collect.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    began, machine = time.perf_counter(), machine_facts()
    measured = measure(_QUICK if options.quick else _FULL, options.scratch)
    judged = list(claims(measured))
    rows = {"predictions": [compared.row() for compared in measured["predictions"]]}
    results = {"machine": machine, "quick": options.quick, "claims": judged, **measured, **rows}
    results["seconds"] = time.perf_counter() - began
    print(predictions_table(measured["predictions"]), end="\n\n")
    text = "a smoke run: too few repeats for any claim" if options.quick else claims_table(judged)
    write_and_print(results, options.out, text)


if __name__ == "__main__":
    main()
