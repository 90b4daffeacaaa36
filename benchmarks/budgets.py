"""Accuracy of budgets and cost of threshold policies: `python benchmarks/budgets.py [--quick]`; takes ten minutes.

Budgets run on simulated clocks first, then on the bundled pair, greedy and on one thread. Prints a table, and writes
all results to `--out` as JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from fsd_decoding.adaptive import SpeedBudget
from lib.common.claims import Claim, claims_table
from lib.common.machine import machine_facts
from lib.common.results import write_and_print
from lib.policies.budget_engine import Bundled, overhead, risk, speeds
from lib.policies.budget_world import Law, simulate

_WINDOW = 500  # rounds that speed is averaged over
_REQUESTED, _SECONDS = 250.0, 0.01  # tokens/s; seconds per round
_LAWS = {"as the profile has it": Law(), "another": Law(lossless=0.5, loosest=0.96, half=0.05)}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int  # simulated
    problems: int
    timed: int  # texts for the profile
    texts: int  # for every requested speed, once all have settled
    stream: int  # texts of the stream that changes
    pieces: tuple[int, int]  # of work at batch 1 and at batch 32, for overhead
    repeats: int
    shares: tuple[float, ...] = (0.25, 0.5, 0.75)  # requested speeds, between lossless and fastest
    delay: float = 0.0004  # seconds per draft step, about what it takes without


_FULL = Plan(20_000, 3_000, 12, 32, 1_000, (4, 1), 3)
_QUICK = Plan(3_000, 40, 2, 16, 32, (1, 1), 1, shares=(0.25,))


def simulated(rounds: int, rows: int, law: str) -> dict[str, Any]:
    """Simulates a budget while the costs of a round double halfway.

    Returns the errors of the speed in both halves after settling, and the share of windows within 5 % of the request.
    """
    budget = SpeedBudget(_REQUESTED, Law().profile([0.01, 0.03, 0.1, 0.3, 0.6], 0.6, _SECONDS))
    half, late = rounds // 2, budget.settling
    history = simulate(budget, _LAWS[law], lambda n: _SECONDS * (1 + (n >= half)), rounds, rows, seed=rows)
    parts = [slice(late, half), slice(half + late, rounds)]
    windows = [history.speed(slice(i, i + _WINDOW)) for p in parts for i in range(p.start, p.stop - _WINDOW, _WINDOW)]
    errors = [history.speed(p) / _REQUESTED - 1 for p in parts]
    within = float(np.mean([abs(w / _REQUESTED - 1) <= 0.05 for w in windows]))
    return {"rows": rows, "law": law, "settling": late, "errors": errors, "within": within, "window": _WINDOW}


def measure(plan: Plan) -> dict[str, Any]:
    pair = Bundled(plan.problems)
    profile = pair.profile(pair.task.problems[: plan.timed])
    return {
        "simulated": [simulated(plan.rounds, rows, law) for rows in (1, 32) for law in _LAWS],
        "profile": [p.model_dump() for p in profile.curve],
        "overhead": [overhead(pair, profile, b, n, plan.repeats) for b, n in zip((1, 32), plan.pieces, strict=True)],
        "engine": [row for delay in (0.0, plan.delay) for row in speeds(pair, profile, plan.shares, plan.texts, delay)],
        "risk": [
            risk(pair, "divergence", 0.004, plan.stream, batch=8),
            risk(pair, "substitutions", 0.08, plan.stream, batch=8),
        ],
    }


def claims(results: Mapping[str, Any]) -> Iterator[Claim]:
    for row in results["simulated"]:
        name = f"error of tokens/s, costs doubled halfway, {row['rows']} rows, acceptance {row['law']}"
        yield Claim.at_most(name, 0.05, max(map(abs, row["errors"])))
    for row in results["engine"]:
        name = f"error of tokens/s, bundled pair, {row['asked']:.0f} asked" + ", draft delayed" * (row["delay"] > 0)
        yield Claim.at_most(name, 0.1, abs(row["error"]))
    for row in results["risk"]:
        name = f"error of {row['measure']} per token, stream that changes (bound: the most above its guarantee)"
        yield Claim(name, "<= 0.02", abs(row["error"]), row["excess"], abs(row["error"]) <= 0.02 and row["excess"] <= 0)
    for row in results["overhead"]:
        for policy, share in row["shares"].items():
            yield Claim.at_most(f"share of a round that policy {policy} takes, batch {row['batch']}", 0.02, share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose numbers mean nothing")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "budgets.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    plan = _QUICK if options.quick else _FULL
    began, machine = time.perf_counter(), machine_facts()
    results = measure(plan)
    judged = list(claims(results))
    results |= {"machine": machine, "command": sys.argv, "plan": asdict(plan), "claims": judged}
    results["seconds"] = time.perf_counter() - began
    write_and_print(results, options.out, claims_table(judged))


if __name__ == "__main__":
    main()
