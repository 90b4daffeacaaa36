"""Speed of certified settings compared with an oracle's: `nohup python benchmarks/regret.py &`; takes an hour.

Each run is the search, freezing and certificate of the command, with the scores of a pool of real decodings
(`lib/pool.py`) or a synthetic one (`lib/surfaces.py`). The tuning part is drawn from one half
of a pool and the certification part, with replacement, from the other half. The truth is that whole other half, decoded
at every threshold. Decodings are looked up, and counted as what decoding would have emitted; tokens/s follow from
counts by costs that were measured once. A run that certifies nothing has the lossless speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fsd_calib.calibration.auto_scores import USUAL
from fsd_calib.tasks.base import Problem
from lib import surfaces
from lib.common.results import RESULTS, machine_facts, options_of, write_json
from lib.pool import CONFIDENCE, TARGET, CountingPool, Pool, PooledForecast, Truth, calibrate_on_pool
from lib.rules.pool import TEMPERATURES, pool_of_texts

WANTED = (0.97, 0.98, 0.99)
TUNING, CERTIFICATION = {2_400: 600, 754: 189}, (2_400, 754)  # of 3,000 problems and of 943
SWEEP = 20  # thresholds of a plain table, on every problem of both parts
_COPIES = 1_000_000  # the first id of copies, which stand for problems drawn with replacement


@dataclass(frozen=True)
class Run:
    """The outcome of one calibration."""

    ratio: float  # certified tokens/s over the oracle's
    certified: bool
    false: bool
    decoded: float  # tokens of search and certificate over those of a plain table
    searched: float  # the same, of the search alone
    parts: float  # decodings of the certificate over its problems: 2 for target and one setting on all of them
    trials: int
    rungs: int


class Arena:
    """A pool that is split into halves at random for every two runs.

    Args:
        scores: those that are searched; None: all of the pool, among which the oracle chooses anyway.
    """

    def __init__(self, pool: Pool, forecast: PooledForecast, rule: str, scores: tuple[str, ...] | None = None) -> None:
        self.pool, self.forecast, self.whole = pool, forecast, pool.space(rule)
        self.space = self.whole if scores is None else replace(self.whole, scores=scores)
        self._known = min(len(arm.known) for arm in pool.arms.values())

    def draw_parts(self, seed: int, certification: int) -> tuple[CountingPool, list[Problem], list[Problem], Truth]:
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
    def _halves(self, number: int) -> tuple[Truth, Truth]:
        shuffled = np.random.default_rng([number, 1]).permutation(self._known)
        one, other = (np.sort(shuffled[first::2]) for first in (0, 1))
        truth = partial(Truth, self.pool, self.forecast, self.whole)
        return truth(one), truth(other)

    def run(self, wanted: float, certification: int, seed: int) -> Run:
        decode, tuning, certify, truth = self.draw_parts(seed, certification)
        calibrated = calibrate_on_pool(decode, self.forecast, self.space, tuning, certify, wanted)
        certified = calibrated.certified
        retention, speed = (1.0, truth.lossless) if certified is None else truth.of(certified)[:2]
        table = SWEEP * sum(self.pool(TARGET, [decode.copies.get(p.id, p)])[0][0].tokens for p in [*tuning, *certify])
        return Run(
            ratio=speed / truth.best(lambda whole: whole.retention >= wanted),
            certified=certified is not None,
            false=retention < wanted,
            decoded=(calibrated.search + calibrated.certificate).tokens / table,
            searched=calibrated.search.tokens / table,
            parts=calibrated.certificate.decodings / certification,
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
        "parts": float(np.mean([run.parts for run in runs])),
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
    "table's tokens | parts |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def _row(row: dict[str, Any]) -> str:
    of = row["of_the_oracle"]
    speeds = [f"{of[name]:.3f}" for name in ("median", "tenth", "mean")]
    shares = [f"{row['certified']:.0%}", f"{row['false']:.1%}", f"{row['decoded']:.1%}", f"{row['parts']:.2f}"]
    cells = [row["pool"], f"{row['certification']:,}", row["wanted"], *speeds, *shares]
    return "| " + " | ".join(map(str, cells)) + " |"


def real_arenas() -> dict[str, Callable[[int], Arena]]:
    """Returns by name the pool of the bundled pair, which is the same for every seed."""
    pool = Pool.read()
    arena = Arena(pool, PooledForecast.read(pool), pool.about["rule"])
    return {"bundled pair": partial(_same, arena)}


def score_arenas(folder: Path) -> dict[str, Callable[[int], Arena]]:
    """Returns by name pools of many scores at one draft length, of which few are searched: by default, or as given.

    Args:
        folder: of the texts that `rules.py` stored.
    """
    arenas: dict[str, Callable[[int], Arena]] = {}
    for temperature in TEMPERATURES:
        pool, forecast, rule, auto = pool_of_texts(folder, temperature)
        for name, scores in (("js, doubt", USUAL), (f"auto: {', '.join(auto)}", auto)):
            arena = Arena(pool, forecast, rule, scores)
            arenas[f"temperature {temperature:g}, {name}"] = partial(_same, arena)
    return arenas


def _same(arena: Arena, seed: int) -> Arena:
    return arena


def synthetic_arenas() -> dict[str, Callable[[int], Arena]]:
    """Returns by surface a pool for each seed, so that results do not depend on a single draw of problems."""

    @lru_cache(maxsize=64)
    def arena(name: str, seed: int) -> Arena:
        pool = surfaces.draw_pool(surfaces.SURFACES[name], seed)
        return Arena(pool, surfaces.forecast(pool), surfaces.RULE)

    return {name: partial(arena, name) for name in surfaces.SURFACES}


def main() -> None:
    parser = options_of(__doc__, "regret.json")
    parser.add_argument(
        "--runs", type=int, default=200, help="calibrations per goal; a tenth of them on synthetic pools"
    )
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="FOLDER",
        help="where rules.py stored texts: compares js and doubt with the scores that traces speak for, and nothing "
        "else; results then go to regret_scores.json",
    )
    parser.set_defaults(out=None)
    options, machine = parser.parse_args(), machine_facts()
    runs, wanted = (2, WANTED[:1]) if options.quick else (options.runs, WANTED)
    print(HEADER)
    if options.texts is not None:
        rows = report(score_arenas(options.texts), CERTIFICATION[1:], wanted, max(runs // 4, 1))
    else:
        rows = report(real_arenas(), CERTIFICATION, wanted, runs)
        rows += report(synthetic_arenas(), CERTIFICATION[:1], wanted, max(runs // 10, 1))
    out = options.out or RESULTS / f"regret{'' if options.texts is None else '_scores'}.json"
    write_json({"machine": machine, "confidence": CONFIDENCE, "tuning": TUNING, "rows": rows}, out)


if __name__ == "__main__":
    main()
