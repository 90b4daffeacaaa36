"""FSD inside vLLM: cost of the plugin, speed and retention: `python benchmarks/vllm_fsd.py`; takes 40 minutes.

It runs in the environment that has vLLM (`sh install.sh vllm`). Everything is greedy, in fp32 and eager. First
`fsd-calibrate --task arithmetic --min-acc 0.98` runs with either engine on all cores, for the time that each takes and
the profile of ours, which --profile replaces. Then engines, each a process of its own on one core, decode the same
problems in turns:
  vLLM: its target alone, its own `sd` at several L, and the plugin, at the profile's T and at one that accepts nothing,
  where D is computed of the tokens that could be accepted by it, or of all (requests with `min_tokens`);
  our engine, with the same profile: `target`, `sd` and FSD.
Last, fresh problems are decoded by vLLM's target and by the plugin. The exit code is 1 if a claim is not reached.
--only-calibrations times the command anew (16 minutes), and keeps what the file holds besides.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fsd_calib import ThresholdProfile
from fsd_data import pair_paths
from lib.common.claims import Claim, claims_table, reached
from lib.common.machine import machine_facts
from lib.common.results import write_and_print, write_json
from lib.engines.own import OwnSettings
from lib.engines.processes import Served, openmp, pin, serve
from lib.engines.vllm import SETTINGS, VllmSettings
from lib.vllm.calibration import calibrate_each
from lib.vllm.retention import Fresh, Retention, measure_retention
from lib.vllm.speeds import BEST, FSD, Contestants, Plan, Speeds

_BATCHES, _LENGTHS = (1, 8, 32), (3, 4, 5, 6, 8)
_NOTHING = 1e-12  # T that accepts no token but those with D = 0, while every D that could decide is computed
_CHOOSING_SEED, _TIMED_SEED, _FRESH_SEED = 72_001, 72_002, 72_003

_COST = {1: 1.03, 32: 1.05}
_FASTER = {1: 1.25}
_LARGEST_DIFFERENCE = 2.576  # standard errors; a true agreement is further apart in 1 % of all runs


def plan(problems: int, repeats: int) -> Plan:
    """Plans for `problems` at batch 32, the largest; smaller batches are slower and get fewer."""
    by_batch = {1: problems // 5, 8: problems // 2, 32: problems}
    return Plan(
        problems={batch: max(count, batch) for batch, count in by_batch.items()},
        choosing={batch: max(count // 2, batch) for batch, count in by_batch.items()},
        repeats=repeats, choosing_repeats=max(1, repeats // 3),
    )  # fmt: skip


def calibrations_of(folder: Path) -> dict[str, Any]:
    """Returns the wall time of a calibration with either engine, on all cores, and the machine that it was taken on."""
    return {"machine": machine_facts(), "engines": calibrate_each(folder)}


def time_calibrations(out: Path) -> int:
    """Replaces the calibrations in a file of results."""
    results = json.loads(out.read_text())
    with tempfile.TemporaryDirectory(prefix="vllm-fsd-") as name:
        results["calibrations"] = calibrations_of(Path(name))
    write_json(results, out)
    return 0


def accepting_nothing(profile: Path, folder: Path) -> Path:
    """Writes the profile with a T that accepts nothing."""
    changed = json.loads(profile.read_text()) | {"threshold": _NOTHING}
    edited = folder / "accepts-nothing.json"
    edited.write_text(json.dumps(changed))
    return edited


def measure(profile_file: Path, folder: Path, planned: Plan, fresh_problems: int) -> dict[str, Any]:
    profile = ThresholdProfile.load(profile_file)
    if profile.threshold is None:
        sys.exit(f"the profile {profile_file} has no threshold, so no FSD to measure; give another by --profile")
    fresh = Fresh(profile)
    _, choosing = fresh.task(_CHOOSING_SEED, max(planned.choosing.values()))
    task, timed = fresh.task(_TIMED_SEED, max(planned.problems.values()))
    retained, unseen = fresh.task(_FRESH_SEED, fresh_problems)
    with serve(_engines(profile_file, profile, folder)) as served:
        contestants = _contestants(served, profile.draft_length)
        speeds = {}
        for batch in _BATCHES:
            speeds[batch] = Speeds(contestants, task, choosing, timed, planned).measure(batch)
            print(table(speeds[batch]), end="\n\n", flush=True)
        retention: Retention | None = None
        if fresh_problems:
            retention = measure_retention(retained, unseen, contestants.target, contestants.fuzzy, profile)
    return {
        "profile": {"digest": profile.digest, "chosen": profile.chosen.values, "sd": profile.sd and profile.sd.values},
        "speeds": speeds, "retention": retention, "claims": vllm_claims(speeds, retention),
    }  # fmt: skip


def _engines(file: Path, profile: ThresholdProfile, folder: Path) -> dict[str, Any]:
    target, draft = pair_paths()
    models = (str(target), str(draft))
    lengths = sorted({*_LENGTHS, profile.draft_length})
    return {
        "target": VllmSettings(models),
        **{f"sd {length}": VllmSettings(models, length) for length in lengths},
        "judging": VllmSettings(models, profile.draft_length, accepting_nothing(file, folder)),
        "fuzzy": VllmSettings(models, profile.draft_length, file),
        "own": OwnSettings(models, file),
    }


def _contestants(served: Mapping[str, Served], length: int) -> Contestants:
    exact = {int(name.removeprefix("sd ")): each for name, each in served.items() if name.startswith("sd ")}
    return Contestants(served["target"], exact, served["judging"], served["fuzzy"], served["own"], length)


def vllm_claims(speeds: Mapping[int, Mapping[str, Any]], retention: Retention | None) -> list[Claim]:
    return [*_of_speeds(speeds), *([] if retention is None else _of_retention(retention))]


def _of_speeds(speeds: Mapping[int, Mapping[str, Any]]) -> Iterator[Claim]:
    for batch, wanted in _COST.items():
        yield Claim.at_most_times(f"CPU seconds of a step, plugin / without, batch {batch}", wanted,
                                  speeds[batch]["step_cost"])  # fmt: skip
        same = float(speeds[batch]["same_steps"])
        yield Claim.at_least(f"same steps and texts in both (1: yes), batch {batch}", 1, same)
    for batch, wanted in _FASTER.items():
        yield Claim.faster(f"{FSD} / {BEST}, vLLM, tokens per CPU second, batch {batch}", wanted,
                           speeds[batch]["speed_ups"][f"{FSD} / {BEST}"])  # fmt: skip


def _of_retention(found: Retention) -> Iterator[Claim]:
    name = f"retention on {found.outcomes.total} fresh problems served through the plugin"
    if found.wanted is not None:
        reached = found.lower_bound >= found.wanted
        yield Claim(name, f">= {found.wanted:g}", found.retention, found.lower_bound, reached)
    yield Claim.at_most("its distance from the profile's, in standard errors", _LARGEST_DIFFERENCE,
                        found.difference_errors)  # fmt: skip


def table(speeds: Mapping[str, Any]) -> str:
    """Returns lines with the speeds at one batch size: medians and quartiles over repeats."""
    lines = [f"batch {speeds['batch']}, {speeds['problems']} problems, best L of sd: {speeds['sd_lengths'].best}"]
    for name, about in speeds["contestants"].items():
        cpu, wall = about["tokens_per_cpu_second"], about["tokens_per_second"]
        steps = f", {about['tokens'] / about['steps']:.2f} tokens a step" if about["steps"] else ""
        lines.append(
            f"  {name:22s} {cpu.median:7.1f} tokens per CPU second ({cpu.low:.1f} to {cpu.high:.1f}), "
            f"{wall.median:.1f} by the clock, {about['right']} right, {about['texts_of_target']} texts as the target's"
            f"{steps}"
        )
    costs = {"": "step_cost", ", requests off": "step_cost_off", ", D of every token": "step_cost_of_all"}
    lines += [f"  a step with the plugin / without{kind}: {cost.median:.4f} ({cost.at_least:.4f} to {cost.at_most:.4f})"
              for kind, cost in ((kind, speeds[name]) for kind, name in costs.items())]  # fmt: skip
    lines += [f"  {name}: {ratio.median:.3f} ({ratio.at_least:.3f} to {ratio.at_most:.3f})"
              for name, ratio in speeds["speed_ups"].items()]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--profile", type=Path, help="of arithmetic by the bundled pair; default: calibrate by either engine"
    )
    parser.add_argument("--problems", type=int, default=128, help="timed at batch 32; fewer at smaller batches")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--fresh", type=int, default=2000, help="fresh problems whose answers are compared")
    parser.add_argument("--skip-fresh", action="store_true", help="do not measure retention")
    parser.add_argument("--core", type=int, help="default: the last one")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "vllm_fsd.json")
    parser.add_argument("--only-calibrations", action="store_true", help="time the calibrations, and nothing else")
    options = parser.parse_args()
    if options.only_calibrations:
        return time_calibrations(options.out)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="vllm-fsd-") as name:
        calibrations = None if options.profile else calibrations_of(Path(name))
        profile = options.profile or Path(name) / "fsd-calib" / "out" / "profile.json"
        core = pin(options.core)
        machine = machine_facts() | {"core": core, "threads": 1, "intel_openmp": openmp() is not None}
        fresh = 0 if options.skip_fresh else options.fresh
        measured = measure(profile, Path(name), plan(options.problems, options.repeats), fresh)
    results = {
        "machine": machine,
        "vllm_settings": SETTINGS,
        "calibrations": calibrations,
        **measured,
        "seconds": time.perf_counter() - began,
    }
    write_and_print(results, options.out, claims_table(measured["claims"]))
    return 0 if reached(measured["claims"]) else 1


if __name__ == "__main__":
    sys.exit(main())
