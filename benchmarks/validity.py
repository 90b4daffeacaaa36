"""How often certificates are false, by simulation: `python benchmarks/validity.py [--quick]`; an hour on one core.

The size of the test is the probability that it passes where retention is exactly what is wanted. With one seed per
problem it is summed over outcomes; with four seeds it is simulated, under laws by which seeds agree in different
ways. Then follow whole attempts in a fixed sequence, and five attempts on one certification part, both in many runs at
once. Problems in groups, what users do with one target, designs with more and fewer looks, attempts that go on with
more problems, and sequences that the real search froze go through the real ledger, holdout and test. `designs` and
`frozen` have what looks save, too. Among certificates that passed, these, `extensions` and `given_passing` say how
often what is printed beside them is wrong; `series` has the power of other ways to divide the budget of errors among
attempts. Cells above what is promised, by three standard errors where they are simulated, are listed under `above`.
Prints the largest values, and writes all results to `--out` as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.common.results import machine_facts, options_of, write_json
from lib.validity import groups, series, wild
from lib.validity.attempts import attempts
from lib.validity.designs import Independent, designs
from lib.validity.extensions import extensions
from lib.validity.frozen import POOLS, frozen
from lib.validity.given_passing import given_passing
from lib.validity.groups import Grouped
from lib.validity.shares import CONFIDENCE
from lib.validity.sizes import LEVELS, NUMBERS, Grid, one_seed, several_seeds
from lib.validity.worlds import sequences

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
    groups: tuple[Grouped, ...]
    of_tuned: tuple[Grouped, ...]  # whose settings are chosen on a tuning part
    wild: tuple[tuple[int, float], ...]  # problems and churn of what users do
    relabelled: tuple[int, float]  # the same of more problems whose labels are changed
    replayed: int  # runs of groups and of what users do
    printed: tuple[int, ...]  # problems of certificates whose bounds are judged
    printed_churn: tuple[float, ...]
    certificates: int  # of each population
    false: tuple[Independent, ...]  # populations of which designs are compared
    true: tuple[Independent, ...]
    in_groups: tuple[Grouped, ...]
    compared: int  # runs of each
    extended: tuple[Independent, ...]  # the same, for attempts that go on
    false_extended: tuple[Independent, ...]
    pools: tuple[str, ...]
    freezings: int  # in each pool
    parts: int  # that each is certified on


_PROBLEMS = (50, 100, 200, 400, 660, 1319, 2100)
_FULL = Size(
    Grid(
        _PROBLEMS, (0.3, 0.5, 0.65, 0.8, 0.9, 0.98), (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1),
        (0.95, 0.97, 0.98, 0.99, 1.0, 1.005, 1.01, 1.02),
    ),
    Grid(_PROBLEMS, (0.3, 0.8, 0.98), (0.005, 0.03, 0.1), (0.95, 0.98, 1.0, 1.02)),
    10_000, (250, 660, 1319), (0.0, 0.03, 0.1), 10_000,
    (
        *(Grouped(660, each, alike, churn) for each, alike in ((5, 0.1), (5, 0.3), (10, 0.3))
          for churn in (0.02, 0.04, 0.1)),
        Grouped(2100, 5, 0.3, 0.04), Grouped(2100, 10, 0.3, 0.04),
    ),
    (Grouped(940, 5, 0.3, 0.04), Grouped(940, 5, 0.3, 0.1)),
    ((660, 0.04), (660, 0.1)), (1320, 0.1), 2_000, (250, 660, 2100), (0.02, 0.1), 400,
    tuple(Independent(problems, churn) for problems in (250, 660, 2100) for churn in (0.02, 0.04, 0.1)),
    (
        Independent(2100, 0.04, 0.015), Independent(2100, 0.04, 0.02), Independent(2100, 0.04, 0.01),
        Independent(660, 0.02, 0.02), Independent(660, 0.04, 0.02), Independent(1319, 0.1, 0.02),
    ),
    (Grouped(660, 5, 0.3, 0.04),), 1_000,
    (Independent(660, 0.04, 0.02), Independent(660, 0.04, 0.015), Independent(1319, 0.1, 0.02)),
    (Independent(250, 0.04), Independent(660, 0.04), Independent(660, 0.1)), tuple(POOLS), 4, 40,
)  # fmt: skip
_QUICK = Size(
    Grid((50, 200), (0.8,), (0.02, 0.1), (0.98, 1.0, 1.02)), Grid((200,), (0.8,), (0.03,), (1.0,)),
    2_000, (250,), (0.03,), 1_000,
    (Grouped(250, 5, 0.3, 0.04),), (Grouped(200, 5, 0.3, 0.04),), ((80, 0.04),), (80, 0.04), 40, (250,), (0.1,), 10,
    (Independent(250, 0.04),), (Independent(250, 0.02, 0.02),), (Grouped(250, 5, 0.3, 0.04),), 20,
    (Independent(250, 0.02, 0.02),), (Independent(80, 0.04),), ("accuracy .3",), 1, 2,
)  # fmt: skip


def report(size: Size, only: Collection[str]) -> dict[str, Any]:
    """Returns the results of these parts, each drawn by a generator of its own; of none: all."""
    several = [churn for churn in size.churn if churn]  # of attempts
    parts: dict[str, Callable[[np.random.Generator], Any]] = {
        "designs": lambda rng: designs(size.false, size.true, size.in_groups, size.compared, rng),
        "extensions": lambda rng: extensions(size.false_extended, size.extended, size.compared, rng),
        "series": lambda rng: series.power(size.problems, (0.99, 0.995, 1.0), size.runs // 5, rng),
        "groups": lambda rng: groups.groups(size.groups, size.of_tuned, size.replayed, rng),
        "wild": lambda rng: wild.wild(size.wild, size.relabelled, size.replayed, rng),
        "given_passing": lambda rng: given_passing(size.printed, size.printed_churn, size.certificates, rng),
        "frozen": lambda rng: frozen(size.pools, size.freezings, size.parts, rng),
        "sequences": lambda rng: sequences(size.problems, size.churn, size.runs, rng),
        "attempts": lambda rng: attempts(size.problems, several, size.runs, rng),
        "one_seed": lambda _: one_seed(size.one_seed),
        "several_seeds": lambda rng: several_seeds(_SEEDS, size.seeds, size.draws, rng),
    }
    levels = dict(zip(map(str, NUMBERS), LEVELS, strict=True))  # by the number of the attempt
    ran = [name for name in parts if not only or name in only]
    found: dict[str, Any] = {"command": sys.argv, "confidence": CONFIDENCE, "levels": levels, "parts": ran}
    for place, (name, part) in enumerate(parts.items()):
        if name not in ran:
            continue
        began = time.time()
        found[name] = part(np.random.default_rng([_SEED, place]))
        print(f"{name}: {time.time() - began:.0f} s, above: {found[name].get('above')}", flush=True)
    return found


def as_markdown(results: Mapping[str, Any]) -> str:
    """Returns a table of the largest values, and of how many cells are above their level."""
    levels = [f"attempt {number}: {level:.4f}" for number, level in results["levels"].items()]
    rows = [["", *levels, "cells", "above"]]
    rows.append(["---"] * len(rows[0]))
    for name in filter(results.__contains__, ("one_seed", "several_seeds")):  # others may not have been run yet
        part = results[name]
        largest = [f"{x:.3f} of it" for x in part["largest_over_level"]]
        rows.append([name, *largest, str(len(part["rows"])), str(len(part["above"]))])
    for name in filter(
        results.__contains__, ("sequences", "attempts", "groups", "wild", "designs", "extensions", "frozen")
    ):
        part = results[name]
        rows += [[], [name, f"at most {part['allowed']:.4f}", f"{len(part['above'])} above"]]
        rows += [[way, f"{largest:.4f}"] for way, largest in part["largest"].items()]
    printed = {
        f"{name}, printed": results[name]["printed"] for name in ("designs", "extensions", "frozen") if name in results
    }
    if "given_passing" in results:
        printed["given_passing"] = results["given_passing"]
    for name, part in printed.items():
        rows += [[], [name, f"{len(part['above'])} above"]]
        rows += [[what, f"{largest:.4f}"] for what, largest in part["largest"].items()]
    return "\n".join("| " + " | ".join(row) + " |" if row else "" for row in rows)


def main() -> None:
    parser = options_of(__doc__, "validity.json")
    parser.add_argument("--only", nargs="+", default=(), help="these parts; the others remain as they are in --out")
    options, machine = parser.parse_args(), machine_facts()
    kept = json.loads(options.out.read_text()) if options.only else {}
    found = report(_QUICK if options.quick else _FULL, options.only)
    revisions = kept.get("revisions", {}) | dict.fromkeys(found["parts"], machine["revision"])
    results = kept | found | {"revisions": revisions}
    write_json({**results, "machine": machine, "seconds": time.time() - machine["began"]}, options.out)
    print(as_markdown(results))


if __name__ == "__main__":
    main()
