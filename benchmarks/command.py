"""How long the default command takes, what it had planned, and where the time goes: `python benchmarks/command.py`.

Runs `fsd-calibrate --task arithmetic --min-acc 0.98` as a user would, on all cores, once per seed, with empty folders.
Takes three minutes a seed. Prints claims, and writes all results to `--out` as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fsd_decoding.profile.threshold_profile import ThresholdProfile
from lib.common.claims import Claim, claims_table
from lib.common.machine import machine_facts
from lib.common.results import write_and_print

_SECONDS = 300.0  # wanted at most
_FULL, _QUICK = ("--min-acc=0.98",), ("--min-acc=0.8", "--limit=100", "--workers=1")
_NEAR = 0.25  # of the truth, that the plan is to be within


def run(seed: int, command: Sequence[str]) -> dict[str, Any]:
    """Returns the times and the certified setting of one run of the command, which is given by its options."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        own = [f"--{name}={folder / name}" for name in ("out", "cache", "state")]
        options = ["--task=arithmetic", *command, f"--seed={seed}", *own]
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        before, began = _cpu_seconds(), time.time()
        recorded = [sys.executable, "-m", "lib.command.recorded", str(folder / "times"), str(began), *options]
        subprocess.run(recorded, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        total = time.time() - began
        profile = ThresholdProfile.load(folder / "out" / "profile.json")
        return {
            "seed": seed, "total_seconds": total, "cpu_seconds": _cpu_seconds() - before,
            **json.loads((folder / "times").read_text()),
            "trials": profile.effort.trials if profile.effort else 0, "outcome": profile.outcome,
            "setting": [profile.divergence, profile.threshold, profile.draft_length],
        }  # fmt: skip


def claims(runs: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    yield Claim.at_most(
        "seconds of the command, median", _SECONDS, float(np.median([r["total_seconds"] for r in runs]))
    )
    shares = [r["planned_seconds"] / (r["total_seconds"] - r["seconds"]["preparation"]) for r in runs]
    yield Claim.at_most("|planned / taken from the plan on - 1|, the largest", _NEAR, max(abs(s - 1) for s in shares))


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Returns a line for each run with the seconds of its steps, planned ones in brackets."""
    lines = []
    for one in runs:
        planned = one["planned"]
        steps = (
            f"{name} {seconds:.0f}" + (f" ({planned[name]['seconds']:.0f})" if name in planned else "")
            for name, seconds in one["seconds"].items()
        )
        lines.append(
            f"seed {one['seed']}: {one['total_seconds']:.0f} s ({one['planned_seconds']:.0f}), "
            f"{one['cpu_seconds']:.0f} CPU seconds; {', '.join(steps)}; {one['outcome']} {one['setting']}"
        )
    return "\n".join(lines)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smoke run with one seed, whose numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "command.json")
    options = parser.parse_args()
    began, machine = time.perf_counter(), machine_facts()
    seeds, command = (1, _QUICK) if options.quick else (options.seeds, _FULL)
    runs = [run(seed, command) for seed in range(seeds)]
    judged = list(claims(runs))
    results = {"machine": machine, "claims": judged, "runs": runs, "seconds": time.perf_counter() - began}
    write_and_print(results, options.out, f"{table(runs)}\n\n{claims_table(judged)}")


if __name__ == "__main__":
    main()
