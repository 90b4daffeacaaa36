"""The default command compared with the best of a grid: `nohup python benchmarks/literal.py &`; takes 40 minutes.

Runs `fsd-calibrate --task arithmetic --min-acc 0.98` as a user would, once per seed, each with folders of its own. The
certified settings and a grid of settings are then decoded on fresh problems, those of the pool (`pool.py`), where some
settings are decoded already. The certified settings and the fastest of the grid with the wanted retention are timed in
turns on the same problems.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.engines.configuration import Configuration
from fsd_calib.measuring.interleaved import measure_speeds
from fsd_calib.progress import Silent
from fsd_calib.tasks.base import Problem
from fsd_data import pair_paths
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from lib.calibration.pool import Pool, PooledForecast
from lib.common.machine import machine_facts
from lib.common.results import write_json

WANTED, RULE = 0.98, "fsd-coupled"
_FRESH = 2_000
_LENGTHS, _SHARES = (4, 8, 12), (0.9, 0.93, 0.95, 0.965, 0.975, 0.982, 0.988, 0.993)
_BATCH = 64
_RIVALS, _TIMED = 4, 60  # settings of the grid that are timed, those with the fastest forecast; problems to time on
_SD = Configuration("sd", "js", 5)


class Fresh:
    """The bundled pair on problems that no calibration has decoded."""

    def __init__(self, problems: int) -> None:
        torch.set_num_threads(1)
        self.pair = SpeculativeDecoder.from_pretrained(*pair_paths(), device="cpu", dtype=torch.float32)
        self._pool = Pool.read()
        self.task = load_task(
            "arithmetic", seed=self._pool.about["seed"], limit=problems, tokenizer=self.pair.tokenizer
        )
        self._solved = int(self._pool.target_right[:problems].sum())

    def measure(self, configuration: Configuration) -> dict[str, Any]:
        known = (configuration.divergence, configuration.draft_length) in self._pool.arms
        solved, forecast = self._look_up(configuration) if known else self._count(configuration)
        return {"setting": asdict(configuration), "retention": solved / self._solved, "forecast": forecast}

    def _look_up(self, configuration: Configuration) -> tuple[int, float]:
        """Returns the number of problems solved, and tokens/s by the cost model, from the pool."""
        whole = self._pool.whole(configuration, np.arange(len(self.task.problems)))
        return int(whole.right.sum()), whole.tokens_per_second

    def _count(self, configuration: Configuration) -> tuple[int, float]:
        """Returns the same from decoding."""
        results = self._decode(configuration, self.task.problems, _BATCH)
        tokens, rounds, drafted = (sum(getattr(r, name) for r in results) for name in ("emitted", "rounds", "drafted"))
        solved = sum(self.task.grade(p, r.text) for p, r in zip(self.task.problems, results, strict=True))
        return solved, float(self._pool.costs.tokens_per_second(tokens, rounds, drafted))

    def tokens_per_second(self, configurations: Sequence[Configuration]) -> dict[Configuration, float]:
        """Times configurations in turns, with one stream."""

        def emitted(configuration: Configuration, problems: Sequence[Problem]) -> int:
            return sum(result.emitted for result in self._decode(configuration, problems, 1))

        speeds = measure_speeds(emitted, configurations, self.task.problems[:_TIMED], progress=Silent())
        return {configuration: speeds.of(configuration).value for configuration in configurations}

    def _decode(self, configuration: Configuration, problems: Sequence[Problem], batch: int) -> list[Any]:
        pair = self.pair
        decoder = SpeculativeDecoder(
            pair.target, pair.draft, pair.tokenizer, rule=configuration.rule, divergence=configuration.divergence
        )
        arguments: dict[str, Any] = {} if configuration.threshold is None else {"threshold": configuration.threshold}
        return decoder.generate(
            [p.prompt for p in problems], self.task.max_new_tokens, ids=[p.id for p in problems], stop=self.task.stop,
            draft_length=configuration.draft_length, batch_size=batch, **arguments,
        )  # fmt: skip


def run_command(seed: int, folder: Path) -> Configuration:
    """Runs the command unless its profile is in the folder already; returns what it certified, or `sd`."""
    profile = folder / "out" / "profile.json"
    if not profile.exists():
        own = [f"--{name}={folder / name}" for name in ("out", "cache", "state")]
        command = ["fsd-calibrate", "--task=arithmetic", f"--min-acc={WANTED}", f"--seed={seed}", *own]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    loaded = ThresholdProfile.load(profile)
    lossless = loaded.threshold is None or not loaded.certificate.certified
    return _SD if lossless else Configuration(loaded.rule, loaded.divergence, loaded.draft_length, loaded.threshold)


def grid() -> list[Configuration]:
    pool = Pool.read()
    forecast = PooledForecast.read(pool)
    logits = [float(np.log(share / (1 - share))) for share in _SHARES]
    arms = [Configuration(RULE, divergence, length) for divergence, length in product(("js", "doubt"), _LENGTHS)]
    return [arm.at(forecast.threshold(arm, at)) for arm in arms for at in logits]


def report(seeds: int, problems: int, folder: Path) -> dict[str, Any]:
    chosen = [run_command(seed, folder / str(seed)) for seed in range(seeds)]
    fresh = Fresh(problems)
    measured = {c: fresh.measure(c) for c in grid()}
    feasible = [c for c in measured if measured[c]["retention"] >= WANTED]
    rivals = sorted(feasible, key=lambda c: -measured[c]["forecast"])[:_RIVALS]
    speeds = fresh.tokens_per_second(list(dict.fromkeys([_SD, *chosen, *rivals])))
    best = max(rivals, key=lambda c: speeds[c])
    rows = [
        {"seed": seed, **fresh.measure(c), "tokens_per_second": speeds[c], "of_sd": speeds[c] / speeds[_SD],
         "of_best": speeds[c] / speeds[best]}
        for seed, c in enumerate(chosen)
    ]  # fmt: skip
    return {
        "machine": machine_facts(), "wanted": WANTED, "fresh": problems, "sd": speeds[_SD],
        "best": measured[best] | {"tokens_per_second": speeds[best], "of_sd": speeds[best] / speeds[_SD]},
        "seeds": rows, "median_of_best": float(np.median([row["of_best"] for row in rows])),
        "grid": list(measured.values()),
    }  # fmt: skip


def as_markdown(results: dict[str, Any]) -> str:
    lines = ["| seed | certified | retention | tokens/s, of `sd` | of the grid's best |", "| --- " * 5 + "|"]
    for row in [*results["seeds"], {"seed": "best of the grid", **results["best"], "of_best": 1.0}]:
        at = Configuration(**row["setting"])
        setting = "`sd`" if at.threshold is None else f"{at.divergence} {at.threshold:.4g}, L = {at.draft_length}"
        lines.append(
            f"| {row['seed']} | {setting} | {row['retention']:.3f} | {row['of_sd']:.2f}x | {row['of_best']:.2f} |"
        )
    return "\n".join([*lines, "", f"median of the best: {results['median_of_best']:.2f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--problems", type=int, default=_FRESH, help="fresh ones")
    parser.add_argument("--runs", type=Path, default=Path("runs", "literal"), help="folders of the runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "literal.json")
    options = parser.parse_args()
    results = report(options.seeds, options.problems, options.runs)
    write_json(results, options.out, indent=2)
    print(as_markdown(results))


if __name__ == "__main__":
    main()
