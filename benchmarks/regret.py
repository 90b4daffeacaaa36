"""How fast certified settings are beside the fastest there is: `nohup python benchmarks/regret.py &`; takes an hour.

Knows the pool of real decodings (`benchmarks/pool.py`) and made-up ones (`benchmarks/lib/calibration/surfaces.py`). Each run is the
search, freezing and certificate of the default command on problems of its own: the tuning part is drawn from one half
of a pool, the certification part, with replacement, from the other, and the truth is that other half: all of it,
decoded at every threshold. Decodings are looked up, and counted as what decoding them would have emitted; tokens/s
are counted rounds and drafted tokens by costs measured once. A run that certifies nothing makes the lossless speed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Problem
from lib.calibration import surfaces
from lib.calibration.pooled import FOLDER, TARGET, Counted, Pool, PooledForecast
from lib.calibration.pooled_calibration import Spent, calibrated
from lib.common.machine import facts

CONFIDENCE, WANTED = 0.95, (0.97, 0.98, 0.99)
TUNING, CERTIFICATION = {2_100: 900, 660: 283}, (2_100, 660)  # problems, by those that certify
SWEEP = 20  # thresholds of the usual table, on every problem of both parts
_POINTS = 200  # thresholds an arm, of the truth
_COPIES = 1_000_000  # ids from here on are of copies


@dataclass(frozen=True)
class Run:
    """What one calibration came to. ratio: certified tokens/s over the oracle's; decoded: tokens of search and
    certificate over those of the usual table."""

    ratio: float
    certified: bool
    false: bool
    decoded: float
    searched: float
    trials: int
    rungs: int


class Half:
    """Half of a pool's problems, and what is true of it: every arm at many thresholds."""

    def __init__(self, pool: Pool, forecast: PooledForecast, space: Space, numbers: NDArray[np.intp]) -> None:
        self._pool, self._forecast, self._space, self.numbers = pool, forecast, space, numbers

    def truth(self, configuration: Configuration) -> tuple[float, float]:
        """Retention and tokens/s."""
        whole = self._pool.whole(configuration, self.numbers)
        return whole.retention, whole.tokens_per_second

    @cache  # noqa: B019  # as long as the half
    def best(self, wanted: float) -> float:
        """Tokens/s of the fastest that keeps what is wanted: the oracle's."""
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
    """A pool, split into halves at random, again and again."""

    def __init__(self, pool: Pool, forecast: PooledForecast, rule: str) -> None:
        divergences, lengths = (tuple(sorted(set(of))) for of in zip(*pool.arms, strict=True))
        self.pool, self.forecast, self.space = pool, forecast, Space((rule,), divergences, lengths)
        self._known = min(len(arm.known) for arm in pool.arms.values())

    def drawn(self, seed: int, certification: int) -> tuple[Counted, list[Problem], list[Problem], Half]:
        """A decoder, the problems of both parts, and the half that is the truth of the second.

        Two seeds share their halves, which they use the other way round.
        """
        halves, random = self._halves(seed // 2), np.random.default_rng(seed)
        tuned, truth = halves[seed % 2], halves[1 - seed % 2]
        numbers = np.sort(random.choice(tuned.numbers, TUNING[certification], replace=False))
        again = random.choice(truth.numbers, certification)
        tuning = [self.pool.problems[i] for i in numbers.tolist()]
        copies = {_COPIES + i: self.pool.problems[number] for i, number in enumerate(again.tolist())}
        certify = [replace(problem, id=i, prompt=f"{problem.prompt} ({i})") for i, problem in copies.items()]
        return Counted(self.pool, reuse=True, copies=copies), tuning, certify, truth

    @cache  # noqa: B019  # as long as the arena
    def _halves(self, number: int) -> tuple[Half, Half]:
        shuffled = np.random.default_rng([number, 1]).permutation(self._known)
        one, other = np.sort(shuffled[::2]), np.sort(shuffled[1::2])
        return Half(self.pool, self.forecast, self.space, one), Half(self.pool, self.forecast, self.space, other)

    def run(self, wanted: float, certification: int, seed: int) -> Run:
        decode, tuning, certify, truth = self.drawn(seed, certification)
        found = calibrated(decode, self.forecast, self.space, tuning, certify, wanted, CONFIDENCE)
        retention, speed = (1.0, truth.lossless) if found.certified is None else truth.truth(found.certified)
        table = SWEEP * sum(self.pool(TARGET, [decode.copies.get(p.id, p)])[0][0].tokens for p in [*tuning, *certify])
        spent: Spent = found.search + found.certificate
        return Run(
            ratio=speed / truth.best(wanted),
            certified=found.certified is not None,
            false=retention < wanted,
            decoded=spent.tokens / table,
            searched=found.search.tokens / table,
            trials=found.trials,
            rungs=len(found.frozen),
        )


def described(runs: Sequence[Run]) -> dict[str, Any]:
    """Of one wish. false: the share of runs whose certified setting keeps less than was wanted, in truth."""
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
                rows.append({"pool": name, "certification": certification, "wanted": goal, **described(made)})
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


def real(folder: Path = FOLDER) -> dict[str, Callable[[int], Arena]]:
    """The pool of the bundled pair, by name; the same one for every seed."""
    pool = Pool.read(folder)
    arena = Arena(pool, PooledForecast.read(pool, folder), pool.about["rule"])
    return {"bundled pair": lambda seed: arena}


def made_up() -> dict[str, Callable[[int], Arena]]:
    """Of every surface a pool of its own for each seed, so that no single draw of problems decides."""

    @lru_cache(maxsize=64)
    def arena(name: str, seed: int) -> Arena:
        pool = surfaces.drawn(surfaces.SURFACES[name], seed)
        return Arena(pool, surfaces.forecast(pool), surfaces.RULE)

    return {name: partial(arena, name) for name in surfaces.SURFACES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="calibrations a wish; a tenth of them on made-up pools")
    parser.add_argument("--quick", action="store_true", help="few calibrations: whether it runs, not what they come to")
    parser.add_argument("--pool", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "regret.json")
    options = parser.parse_args()
    runs, wanted = (2, WANTED[:1]) if options.quick else (options.runs, WANTED)
    print(HEADER)
    rows = report(real(options.pool), CERTIFICATION, wanted, runs)
    rows += report(made_up(), CERTIFICATION[:1], wanted, max(runs // 10, 1))
    found = {"machine": facts(), "confidence": CONFIDENCE, "tuning": TUNING, "rows": rows}
    options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
