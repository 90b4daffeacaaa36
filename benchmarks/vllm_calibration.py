"""Calibrating with vLLM as the engine: `python benchmarks/vllm_calibration.py`; takes 25 minutes.

It runs in the environment that has vLLM (`sh install.sh vllm`), on all cores, greedily in fp32. The command
`fsd-calibrate --task arithmetic --min-acc 0.98` runs with either engine and empty folders; both engines decode the same
fresh problems at the same settings; and a server of vLLM that follows the profile certified in vLLM answers 2,000 other
fresh problems, of which it must keep what the certificate says. The exit code is 1 if a claim is not reached.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fsd_calib import ThresholdProfile
from lib.common.claims import Claim, claims_table, reached
from lib.common.machine import machine_facts
from lib.common.results import write_and_print
from lib.vllm.calibration import ENGINES, calibrate_each, curves, served
from lib.vllm.retention import Fresh, Retention

_CURVE_SEED, _SERVED_SEED = 73_001, 73_002
_ERRORS = 3.0  # standard errors by which retention of the two engines may differ at a setting


def claims(rows: list[dict[str, Any]], calibrations: list[dict[str, Any]], retention: Retention | None) -> list[Claim]:
    """Returns what is claimed of calibrating with vLLM, with what was measured."""
    by_engine = {one["engine"]: one for one in calibrations}
    certified = float(by_engine["vllm"]["outcome"].startswith("certified"))
    found = [Claim.at_least("vLLM's calibration certifies (1: yes)", 1, certified)]
    found.append(Claim.at_most("difference of the engines' retention, in standard errors, the largest", _ERRORS,
                               max(map(_difference, rows))))  # fmt: skip
    if retention is not None and retention.wanted is not None:
        wanted, bound = retention.wanted, retention.lower_bound
        name = "retention served by vLLM on fresh problems"
        found.append(Claim(name, f">= {wanted:g}", retention.retention, bound, bound >= wanted))
    return found


def _difference(row: dict[str, Any]) -> float:
    own, vllm = (row[name] for name in ENGINES)
    error = (own["standard_error"] ** 2 + vllm["standard_error"] ** 2) ** 0.5
    return abs(own["retention"] - vllm["retention"]) / error if error else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="problems of the calibrations; default: all")
    parser.add_argument("--curve", type=int, default=600, help="fresh problems that both engines decode")
    parser.add_argument("--fresh", type=int, default=2000, help="fresh problems that the server answers; 0: none")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "vllm_calibration.json")
    options = parser.parse_args()
    began, machine = time.perf_counter(), machine_facts()
    with tempfile.TemporaryDirectory(prefix="vllm-calibration-") as name:
        folder = Path(name)
        limit = [] if options.limit is None else [f"--limit={options.limit}"]
        calibrations = calibrate_each(folder, limit)
        profile = ThresholdProfile.load(folder / "vllm" / "out")
        fresh = Fresh(profile)
        rows = curves(*fresh.task(_CURVE_SEED, options.curve), profile)
        retention = None
        if options.fresh:
            task, problems = fresh.task(_SERVED_SEED, options.fresh)
            retention = served(profile, folder / "vllm" / "out" / "profile.json", task, problems)
    found = claims(rows, calibrations, retention)
    results = {"machine": machine, "calibrations": calibrations, "curves": rows, "served": retention, "claims": found,
               "seconds": time.perf_counter() - began}  # fmt: skip
    write_and_print(results, options.out, claims_table(found))
    return 0 if reached(found) else 1


if __name__ == "__main__":
    sys.exit(main())
