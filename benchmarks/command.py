"""How long the default command takes, what it had planned, and where the time goes: `python benchmarks/command.py`.

Runs `fsd-calibrate --task arithmetic --min-acc 0.98` as a user would, on all cores, with empty folders: for each seed
as it is, and with a certificate that decides once (`--looks 1`). Takes six minutes a seed. Prints claims, and writes
all results to `--out` as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fsd_calib.report.run_folder import load_run
from lib.common.claims import Claim
from lib.common.command import GOAL, QUICK, calibrate
from lib.common.results import conclude, machine_facts, options_of

_SECONDS = 300.0  # wanted at most
_NEAR = 0.25  # of the truth, that the plan is to be within
_ONCE = "--looks=1"
_CERTIFICATION = "certification"


def run(seed: int, command: Sequence[str]) -> dict[str, Any]:
    """Returns the times and the certified setting of one run of the command, which is given by its options."""
    with TemporaryDirectory() as folder:
        ran = calibrate(Path(folder), *command, f"--seed={seed}")
        found = load_run(ran.folder)
    assert found.record is not None, found.lacks
    profile, steps = found.profile, found.record.steps
    return {
        "seed": seed, "options": list(command), "total_seconds": ran.seconds, "cpu_seconds": ran.cpu_seconds,
        "planned": ran.plan["steps"], "planned_seconds": ran.plan["seconds"], "planned_after": ran.planned_after,
        "seconds": {step.name: step.seconds for step in steps},
        "work": {step.name: step.work.model_dump() for step in steps if step.work is not None},
        "trials": len(found.record.trials), "outcome": profile.outcome,
        "setting": [profile.score, profile.threshold, profile.draft_length],
    }  # fmt: skip


def claims(runs: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    usual, once = ([one for one in runs if (_ONCE in one["options"]) == is_once] for is_once in (False, True))
    median = float(np.median([one["total_seconds"] for one in usual]))
    yield Claim.at_most("seconds of the command, median", _SECONDS, median)
    shares = [one["planned_seconds"] / (one["total_seconds"] - one["planned_after"]) for one in runs]
    yield Claim.at_most("|planned / taken from the plan on - 1|, the largest", _NEAR, max(abs(s - 1) for s in shares))
    pairs = list(zip(usual, once, strict=True))
    whole = [ours["total_seconds"] / theirs["total_seconds"] for ours, theirs in pairs]
    yield Claim.at_most("seconds of the command / with one look, median", 0.95, float(np.median(whole)))
    decoded = [
        ours["work"][_CERTIFICATION]["decoded"] / theirs["work"][_CERTIFICATION]["decoded"] for ours, theirs in pairs
    ]
    yield Claim.at_most("decodings of the certificate / with one look, median", 0.65, float(np.median(decoded)))


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Returns a line for each run with the seconds of its steps, planned ones in brackets."""
    lines = []
    for one in runs:
        planned = {name: f" ({step['seconds']:.0f})" for name, step in one["planned"].items()}
        steps = ", ".join(f"{name} {seconds:.0f}{planned.get(name, '')}" for name, seconds in one["seconds"].items())
        lines.append(
            f"{' '.join(one['options'])}, seed {one['seed']}: {one['total_seconds']:.0f} s "
            f"({one['planned_seconds']:.0f}), {one['cpu_seconds']:.0f} CPU seconds; {steps}; {one['outcome']} "
            f"{one['setting']}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = options_of(__doc__, "command.json")
    parser.add_argument("--seeds", type=int, default=3)
    options, machine = parser.parse_args(), machine_facts()
    seeds, command = (1, QUICK) if options.quick else (options.seeds, GOAL)
    runs = [run(seed, each) for seed in range(seeds) for each in (command, (*command, _ONCE))]
    return conclude(options, machine, {"runs": runs}, claims(runs), table(runs))


if __name__ == "__main__":
    sys.exit(main())
