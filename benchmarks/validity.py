"""How often certificates are false, by simulation: `python benchmarks/validity.py [--quick]`; 15 minutes on one core.

The size of the test is the probability that it passes where retention is exactly what is wanted. With one seed per
problem it is summed over all outcomes; with four seeds it is simulated, under laws by which seeds agree in different
ways. Then follow whole attempts in a fixed sequence, and five attempts on one certification part. Cells above their
significance level, by three standard errors where they are simulated, are listed under `above`. Prints the largest
values, and writes all results to `--out` as JSON.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.common.results import machine_facts, options_of, write_json
from lib.validity.attempts import attempts, sequences
from lib.validity.sizes import CONFIDENCE, LEVELS, NUMBERS, Grid, one_seed, several_seeds

_SEED, _SEEDS = 16, 4


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    one_seed: Grid
    seeds: Grid
    draws: int
    problems: tuple[int, ...]  # of whole attempts
    churn: tuple[float, ...]
    runs: int


_PROBLEMS = (50, 100, 200, 400, 660, 1057, 1319, 2100)
_FULL = Size(
    Grid(
        _PROBLEMS, (0.3, 0.5, 0.65, 0.8, 0.9, 0.98), (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1),
        (0.95, 0.97, 0.98, 0.99, 1.0, 1.005, 1.01, 1.02),
    ),
    Grid(_PROBLEMS, (0.3, 0.8, 0.98), (0.005, 0.03, 0.1), (0.95, 0.98, 1.0, 1.02)),
    100_000, (250, 660, 1319), (0.0, 0.03, 0.1), 40_000,
)  # fmt: skip
_QUICK = Size(
    Grid((50, 200), (0.8,), (0.02, 0.1), (0.98, 1.0, 1.02)), Grid((200,), (0.8,), (0.03,), (1.0,)),
    2_000, (250,), (0.03,), 1_000,
)  # fmt: skip


def report(size: Size) -> dict[str, Any]:
    rng = np.random.default_rng(_SEED)
    return {
        "command": sys.argv,
        "confidence": CONFIDENCE,
        "levels": dict(zip(map(str, NUMBERS), LEVELS, strict=True)),  # by the number of the attempt
        "one_seed": one_seed(size.one_seed),
        "several_seeds": several_seeds(_SEEDS, size.seeds, size.draws, rng),
        "sequences": sequences(size.problems, size.churn, size.runs, rng),
        "attempts": attempts(size.problems, size.churn[-2:], size.runs, rng),
    }


def as_markdown(results: Mapping[str, Any]) -> str:
    """Returns a table of the largest values, and of how many cells are above their level."""
    levels = [f"attempt {number}: {level:.4f}" for number, level in results["levels"].items()]
    rows = [["", *levels, "cells", "above"]]
    rows.append(["---"] * len(rows[0]))
    for name in ("one_seed", "several_seeds"):
        part = results[name]
        largest = [f"{x:.3f} of it" for x in part["largest_over_level"]]
        rows.append([name, *largest, str(len(part["rows"])), str(len(part["above"]))])
    for name in ("sequences", "attempts"):
        part = results[name]
        rows += [[], [name, f"at most {part['allowed']:.4f}"]]
        rows += [[way, f"{largest:.4f}"] for way, largest in part["largest"].items()]
    return "\n".join("| " + " | ".join(row) + " |" if row else "" for row in rows)


def main() -> None:
    options, machine = options_of(__doc__, "validity.json").parse_args(), machine_facts()
    results = report(_QUICK if options.quick else _FULL)
    write_json({"machine": machine, **results, "seconds": time.time() - machine["began"]}, options.out)
    print(as_markdown(results))


if __name__ == "__main__":
    main()
