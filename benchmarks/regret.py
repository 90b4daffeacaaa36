"""Speed of certified settings compared with an oracle's: `nohup python benchmarks/regret.py &`; takes an hour.

Each run is the search, freezing and certificate of the default command, on a pool of real decodings
(`lib/calibration/pool.py`) or a synthetic one (`lib/calibration/surfaces.py`). The tuning part is drawn from one half
of a pool and the certification part, with replacement, from the other half. The truth is that whole other half, decoded
at every threshold. Decodings are looked up, and counted as what decoding would have emitted; tokens/s follow from
counts by costs that were measured once. A run that certifies nothing has the lossless speed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Problem
from fsd_decoding.profile.setting import Setting
from lib.calibration import surfaces
from lib.calibration.pool import FOLDER, TARGET, CountingPool, Pool, PooledForecast
from lib.calibration.pooled_calibration import Spent, calibrate_on_pool
from lib.common.machine import machine_facts
from lib.common.results import write_json

CONFIDENCE, WANTED = 0.95, (0.97, 0.98, 0.99)
TUNING, CERTIFICATION = {2_100: 900, 660: 283}, (2_100, 660)  # problems, by those that certify
SWEEP = 20  # thresholds of a plain table, on every problem of both parts
_POINTS = 200  # thresholds per arm at which the truth is computed
_COPIES = 1_000_000  # the first id of copies, which stand for problems drawn with replacement


@dataclass(frozen=True)
class Run:
    """The outcome of one calibration."""

    ratio: float  # certified tokens/s over the oracle's
    certified: bool
    false: bool
    decoded: float  # tokens of search and certificate over those of a plain table
    searched: float  # the same, of the search alone
    trials: int
    rungs: int


class Half:
    """Half of a pool's problems, with the true retention and speed of every arm at many thresholds."""

    def __init__(self, pool: Pool, forecast: PooledForecast, space: Space, numbers: NDArray[np.intp]) -> None:
        self._pool, self._forecast, self._space, self.numbers = pool, forecast, space, numbers

    def truth(self, configuration: Setting) -> tuple[float, float]:
        """Returns retention and tokens/s."""
        whole = self._pool.whole(configuration, self.numbers)
        return whole.retention, whole.tokens_per_second

    @cache  # noqa: B019  # as long as the half
    def best(self, wanted: float) -> float:
        """Returns the oracle's tokens/s: those of the fastest setting with the wanted retention."""
        return max(speed for retention, speed in self._swept if retention >= wanted)

    @cached_property
    def lossless(self) -> float:
        return max(self.truth(arm.at(0.0))[1] for arm in chain.from_iterable(self._space.families))

    @cached_property
    def _swept(self) -> list[tuple[float, float]]:
        shares = np.linspace(self._forecast.lowest, self._forecast.highest, _POINTS).tolist()
        return [
            self.truth(arm.at(threshold))
            for arm in chain.from_iterable(self._space.families)
            for threshold in sorted({0.0} | {self._forecast.threshold(arm, at) for at in shares})
        ]


class Arena:
    """A pool that is split into halves at random for every two runs."""

    def __init__(self, pool: Pool, forecast: PooledForecast, rule: str) -> None:
        divergences, lengths = (tuple(sorted(set(of))) for of in zip(*pool.arms, strict=True))
        self.pool, self.forecast, self.space = pool, forecast, Space((rule,), divergences, lengths)
        self._known = min(len(arm.known) for arm in pool.arms.values())

    def draw_parts(self, seed: int, certification: int) -> tuple[CountingPool, list[Problem], list[Problem], Half]:
        """Returns a decoder, the problems of both parts, and the half that the second part is drawn from.

        Seeds 2n and 2n + 1 use the same halves, with their roles exchanged.
        """
        halves, random = self._halves(seed // 2), np.random.default_rng(seed)
        tuned, truth = halves[seed % 2], halves[1 - seed % 2]
        numbers = np.sort(random.choice(tuned.numbers, TUNING[certification], replace=False))
        again = random.choice(truth.numbers, certification)
        tuning = [self.pool.problems[i] for i in numbers.tolist()]
        copies = {_COPIES + i: self.pool.problems[number] for i, number in enumerate(again.tolist())}
        certify = [replace(problem, id=i, prompt=f"{problem.prompt} ({i})") for i, problem in copies.items()]
        return CountingPool(self.pool, reuse=True, copies=copies), tuning, certify, truth

    @cache  # noqa: B019  # as long as the arena
    def _halves(self, number: int) -> tuple[Half, Half]:
        shuffled = np.random.default_rng([number, 1]).permutation(self._known)
        one, other = np.sort(shuffled[::2]), np.sort(shuffled[1::2])
        return Half(self.pool, self.forecast, self.space, one), Half(self.pool, self.forecast, self.space, other)

    def run(self, wanted: float, certification: int, seed: int) -> Run:
        decode, tuning, certify, truth = self.draw_parts(seed, certification)
        calibrated = calibrate_on_pool(decode, self.forecast, self.space, tuning, certify, wanted, CONFIDENCE)
        certified = calibrated.certified
        retention, speed = (1.0, truth.lossless) if certified is None else truth.truth(certified)
        table = SWEEP * sum(self.pool(TARGET, [decode.copies.get(p.id, p)])[0][0].tokens for p in [*tuning, *certify])
        spent: Spent = calibrated.search + calibrated.certificate
        return Run(
            ratio=speed / truth.best(wanted),
            certified=certified is not None,
            false=retention < wanted,
            decoded=spent.tokens / table,
            searched=calibrated.search.tokens / table,
            trials=calibrated.trials,
            rungs=len(calibrated.frozen),
        )


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns statistics of runs for one goal. "false" is the share of runs with a false certificate."""
    ratios = np.array([run.ratio for run in runs])
    return {
        "runs": len(runs),
        "of_the_oracle": {"median": float(np.median(ratios)), "tenth": float(np.quantile(ratios, 0.1)),
                          "mean": float(ratios.mean())},
        "certified": float(np.mean([run.certified for run in runs])),
        "false": float(np.mean([run.false for run in runs])),
        **{name: float(np.median([getattr(run, name) for run in runs]))
           for name in ("decoded", "searched", "trials", "rungs")},
    }  # fmt: skip


def report(
    arenas: Mapping[str, Callable[[int], Arena]], sizes: Sequence[int], wanted: Sequence[float], runs: int
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, arena in arenas.items():
        for certification in sizes:
            for goal in wanted:
                made = [arena(seed).run(goal, certification, seed) for seed in range(runs)]
                rows.append({"pool": name, "certification": certification, "wanted": goal, **summarise(made)})
                print(_row(rows[-1]), flush=True)
    return rows


HEADER = (
    "| pool | certified on | wanted | of the oracle: median | 10th percentile | mean | certified | false | of the "
    "table's tokens |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def _row(row: dict[str, Any]) -> str:
    of = row["of_the_oracle"]
    speeds = [f"{of[name]:.3f}" for name in ("median", "tenth", "mean")]
    shares = [f"{row['certified']:.0%}", f"{row['false']:.1%}", f"{row['decoded']:.1%}"]
    cells = [row["pool"], f"{row['certification']:,}", row["wanted"], *speeds, *shares]
    return "| " + " | ".join(map(str, cells)) + " |"


def real_arenas(folder: Path = FOLDER) -> dict[str, Callable[[int], Arena]]:
    """Returns by name the pool of the bundled pair, which is the same for every seed."""
    pool = Pool.read(folder)
    arena = Arena(pool, PooledForecast.read(pool, folder), pool.about["rule"])
    return {"bundled pair": lambda seed: arena}


def synthetic_arenas() -> dict[str, Callable[[int], Arena]]:
    """Returns by surface a pool for each seed, so that results do not depend on a single draw of problems."""

    @lru_cache(maxsize=64)
    def arena(name: str, seed: int) -> Arena:
        pool = surfaces.draw_pool(surfaces.SURFACES[name], seed)
        return Arena(pool, surfaces.forecast(pool), surfaces.RULE)

    return {name: partial(arena, name) for name in surfaces.SURFACES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=200, help="calibrations per goal; a tenth of them on synthetic pools"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose numbers mean nothing")
    parser.add_argument("--pool", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "regret.json")
    options = parser.parse_args()
    runs, wanted = (2, WANTED[:1]) if options.quick else (options.runs, WANTED)
    print(HEADER)
    rows = report(real_arenas(options.pool), CERTIFICATION, wanted, runs)
    rows += report(synthetic_arenas(), CERTIFICATION[:1], wanted, max(runs // 10, 1))
    results = {"machine": machine_facts(), "confidence": CONFIDENCE, "tuning": TUNING, "rows": rows}
    write_json(results, options.out, indent=2)


if __name__ == "__main__":
    main()
