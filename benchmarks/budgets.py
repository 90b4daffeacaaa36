"""Do budgets hold, and what do policies cost: `python benchmarks/budgets.py [--quick]`; takes ten minutes.

Knows what is measured, how much of it, and what is claimed. Simulated clocks first, then the bundled pair, greedy, on
one thread. Writes everything to `--out` as JSON, and prints a table.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from decode import plain
from fsd_decoding.adaptive import SpeedBudget
from lib.common.claims import Claim, table
from lib.common.machine import facts
from lib.policies.budget_engine import Bundled, overhead, risk, speeds
from lib.policies.budget_world import Law, live

_WINDOW = 500  # rounds, over which speed is looked at
_ASKED, _SECONDS = 250.0, 0.01
_LAWS = {"as the profile has it": Law(), "another": Law(lossless=0.5, loosest=0.96, half=0.05)}


@dataclass(frozen=True)
class Plan:
    rounds: int  # simulated
    problems: int
    timed: int  # texts for the profile
    texts: int  # for every asked speed, once all have settled
    stream: int  # texts of the stream that changes
    pieces: tuple[int, int]  # at batch 1 and 32, of overhead
    repeats: int
    shares: tuple[float, ...] = (0.25, 0.5, 0.75)  # of the way from lossless speed to the fastest
    delay: float = 0.0004  # seconds, about what a draft step takes


_FULL = Plan(20_000, 3_000, 12, 32, 1_000, (4, 1), 3)
_QUICK = Plan(3_000, 40, 2, 16, 32, (1, 1), 1, shares=(0.25,))


def simulated(rounds: int, rows: int, law: str) -> dict[str, Any]:
    """Costs double halfway. The share of time, in windows after the settling time, that is within 5 % of asked."""
    budget = SpeedBudget(_ASKED, Law().profile([0.01, 0.03, 0.1, 0.3, 0.6], 0.6, _SECONDS))
    half, late = rounds // 2, budget.settling
    lived = live(budget, _LAWS[law], lambda n: _SECONDS * (1 + (n >= half)), rounds, rows, seed=rows)
    parts = [slice(late, half), slice(half + late, rounds)]
    windows = [lived.speed(slice(i, i + _WINDOW)) for p in parts for i in range(p.start, p.stop - _WINDOW, _WINDOW)]
    errors = [lived.speed(p) / _ASKED - 1 for p in parts]
    within = float(np.mean([abs(w / _ASKED - 1) <= 0.05 for w in windows]))
    return {"rows": rows, "law": law, "settling": late, "errors": errors, "within": within, "window": _WINDOW}


def measure(plan: Plan) -> dict[str, Any]:
    pair = Bundled(plan.problems)
    profile = pair.profile(pair.task.problems[: plan.timed])
    return {
        "simulated": [simulated(plan.rounds, rows, law) for rows in (1, 32) for law in _LAWS],
        "profile": [p.model_dump() for p in profile.curve],
        "overhead": [overhead(pair, profile, b, n, plan.repeats) for b, n in zip((1, 32), plan.pieces, strict=True)],
        "engine": [one for delay in (0.0, plan.delay) for one in speeds(pair, profile, plan.shares, plan.texts, delay)],
        "risk": [
            risk(pair, "divergence", 0.004, plan.stream, batch=8),
            risk(pair, "substitutions", 0.08, plan.stream, batch=8),
        ],
    }


def claims(found: Mapping[str, Any]) -> Iterator[Claim]:
    for one in found["simulated"]:
        worst = max(map(abs, one["errors"]))
        name = f"error of tokens/s, costs doubled halfway, {one['rows']} rows, acceptance {one['law']}"
        yield Claim(name, "<= 0.05", worst, worst, worst <= 0.05)
    for one in found["engine"]:
        name = f"error of tokens/s, bundled pair, {one['asked']:.0f} asked" + ", draft delayed" * (one["delay"] > 0)
        yield Claim(name, "<= 0.1", abs(one["error"]), abs(one["error"]), abs(one["error"]) <= 0.1)
    for one in found["risk"]:
        name = f"error of {one['measure']} per token, stream that changes (bound: the most above its guarantee)"
        yield Claim(name, "<= 0.02", abs(one["error"]), one["excess"], abs(one["error"]) <= 0.02 and one["excess"] <= 0)
    for one in found["overhead"]:
        for policy, share in one["shares"].items():
            name = f"share of a round that policy {policy} takes, batch {one['batch']}"
            yield Claim(name, "<= 0.02", share, share, share <= 0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its numbers say nothing")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "budgets.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    plan = _QUICK if options.quick else _FULL
    began, machine = time.perf_counter(), facts()
    found = measure(plan)
    made = list(claims(found))
    found |= {"machine": machine, "command": sys.argv, "plan": asdict(plan), "claims": [asdict(c) for c in made]}
    found["seconds"] = time.perf_counter() - began
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1, default=plain) + "\n")
    print(table(made))
    print(f"\n{found['seconds']:.0f} s; {options.out}")


if __name__ == "__main__":
    main()
