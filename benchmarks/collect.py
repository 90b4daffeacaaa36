"""What traces cost and whether they foretell: `python benchmarks/collect.py`.

Knows what is measured, how much of it, and what is claimed. Prints tables, and writes everything to `--out` as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from decode import plain
from lib.common.claims import Claim, table
from lib.common.machine import facts
from lib.traces.collecting import collecting
from lib.traces.prediction import Compared, Grid, predictions
from lib.traces.scale import large, replay_speed

_RETENTION = 0.95  # from here on replay is held to what it says


@dataclass(frozen=True)
class Plan:
    """`streams`: problems, problems a piece, batch size and repeats of each contest. Portions of the large trace are of
    some 260,000 rows."""

    streams: tuple[tuple[int, int, int, int], ...]
    swept: int  # rows
    portions: int
    real: int  # problems that the large trace is made of
    grid: Grid


_FULL = Plan(
    ((48, 24, 1, 8), (256, 256, 32, 8)), 10_000_000, 400, 300,
    Grid(200, (0.0, 0.6), ("sd", "coupled"), ("fsd-coupled", "fsd-sd", "fsd"), (2, 5, 8), (0.05, 0.1, 0.2)),
)  # fmt: skip
_QUICK = Plan(((4, 2, 2, 1),), 200_000, 1, 8, Grid(8, (0.0, 0.6), ("sd",), ("fsd-coupled",), (3,), (0.1,)))


def measure(plan: Plan, folder: Path | None) -> dict[str, Any]:
    return {
        "collecting": [collecting(*stream) for stream in plan.streams],
        "replay": replay_speed(plan.swept),
        "large": large(folder, plan.portions, plan.real),
        "predictions": predictions(plan.grid),
    }


def claims(found: Mapping[str, Any]) -> Iterator[Claim]:
    for one in found["collecting"]:
        at = f"bundled pair, batch {one['batch']}"
        ratio = one["recorded / bare time"]
        yield Claim(f"decoding collected on-policy / bare, seconds, {at}", "<= 1.05x", ratio.median, ratio.at_most,
                    ratio.at_most <= 1.05)  # fmt: skip
        for way in ("reading alone", "along the target"):
            yield Claim.faster(f"{way} / on-policy, tokens/s, {at}", 5.0, one[f"{way} / on-policy"])
    small, huge = found["replay"][0], found["large"]
    yield _at_most(f"replay of {small['rows']:,} rows, {small['cells']} cells, seconds", 30.0, small["seconds"])
    yield _at_most("its memory, GB", 4.0, small["peak_gb"])
    written = huge["rows_written_per_second"]
    yield Claim("rows written a second", ">= 300,000", written, written, written >= 300_000)
    for work in ("describe", "sweep"):
        yield _at_most(f"{work} of {huge['rows']:,} rows on disk, memory, GB", 4.0, huge[work]["peak_gb"])
    errors = [abs(one.error) for one in found["predictions"] if one.retention >= _RETENTION]
    yield _at_most(
        f"worst error of replay's tokens a round, {len(errors)} settings kept {_RETENTION}", 0.05, max(errors)
    )


def _at_most(name: str, wanted: float, measured: float) -> Claim:
    return Claim(name, f"<= {wanted:g}", measured, measured, measured <= wanted)


def foretold(compared: list[Compared]) -> str:
    head = ["| temperature | rule | L | T | replay | decoded | error | retention |", "| --- " * 8 + "|"]
    return "\n".join([*head, *map(_row, compared)])


def _row(one: Compared) -> str:
    setting = one.setting
    numbers = (f"{one.predicted:.2f}", f"{one.decoded:.2f}", f"{one.error:+.1%}", f"{one.retention:.3f}")
    cells = (one.temperature, setting.rule, setting.draft_length, setting.threshold, *numbers)
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--scratch", type=Path, help="folder for the large trace of 7 GB; by default the system's")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "collect.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    began, machine = time.perf_counter(), facts()
    found = measure(_QUICK if options.quick else _FULL, options.scratch)
    made = list(claims(found))
    rows = {"predictions": [one.row() for one in found["predictions"]]}
    whole = {"machine": machine, "quick": options.quick, "claims": made, **found, **rows}
    whole["seconds"] = time.perf_counter() - began
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(whole, indent=1, default=plain) + "\n")
    print(foretold(found["predictions"]), end="\n\n")
    print("a smoke run: it says nothing" if options.quick else table(made))
    print(f"\n{whole['seconds']:.0f} s; {options.out}")


if __name__ == "__main__":
    main()
