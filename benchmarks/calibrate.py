"""Cost of a calibration and speed of its setting, compared with other ways: `python benchmarks/calibrate.py [--quick]`.

Takes minutes. Each calibration draws its problems anew from the first 3,000 of the pool of real decodings; all ways to
choose a setting get the same ones. Decodings are looked up, and counted as what decoding would have emitted; tokens/s
follow from counted rounds and drafted tokens by costs (c, v) that were measured once. The forecast is a replay of other
problems, as many as a calibration traces.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fsd_calib.certification.power import power
from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Problem
from fsd_collectors.split import CERTIFICATION_SHARE, tuning_and_certification
from fsd_decoding.profile.setting import Setting
from lib.calibration.pool import FOLDER, CountingPool, Pool, PooledForecast, Whole
from lib.calibration.pooled_calibration import Spent, calibrate_on_pool, draw, level
from lib.calibration.uncertified import Estimates, bisection, table, tpe
from lib.common.machine import machine_facts
from lib.common.results import write_json
from lib.common.timing import Spread

_CONFIDENCE = 0.95
_WANTED = (0.97, 0.98, 0.99)
_TABLE_ARM = Setting("fsd-coupled", "js", 5)
_POINTS = 200  # thresholds per arm, of the exhaustive sweep
_LIKELY = 0.5  # probability of passing from which on a setting counts as certifiable


@dataclass(frozen=True)
class Size:
    """How many problems there are."""

    pool: int = 3_000  # the pool's first ones, which all arms have
    problems: int = 1_319  # of a calibration; as many as GSM8K's test split has

    @property
    def certification(self) -> int:
        return round(self.problems * CERTIFICATION_SHARE)


@dataclass(frozen=True)
class Way:
    """What one way decoded in one calibration, and the setting it chose, if any."""

    spent: Spent
    chosen: Setting | None


class Truth:
    """The true retention and speed of all settings, from an exhaustive sweep on all problems."""

    def __init__(self, pool: Pool, space: Space, forecast: PooledForecast, size: Size) -> None:
        self.whole: Callable[[Setting], Whole] = lru_cache(None)(lambda c: pool.whole(c, np.arange(size.pool)))
        self._space, self._forecast, self._problems = space, forecast, size.certification

    @cached_property
    def swept(self) -> list[Setting]:
        """Settings of every arm, evenly spaced in logit(u), and the lossless one."""
        shares = np.linspace(self._forecast.lowest, self._forecast.highest, _POINTS)
        return [
            arm.at(threshold)
            for family in self._space.families
            for arm in family
            for threshold in sorted({0.0} | {self._forecast.threshold(arm, float(at)) for at in shares})
        ]

    def best(self, wanted: float) -> float:
        """Returns tokens/s of the fastest setting with the wanted retention."""
        return max(w.tokens_per_second for c in self.swept if (w := self.whole(c)).retention >= wanted)

    def best_certifiable(self, wanted: float) -> float:
        """Returns tokens/s of the fastest setting that is certified more often than not."""
        return max(w.tokens_per_second for c in self.swept if self._likely(w := self.whole(c), wanted))

    @property
    def lossless(self) -> float:
        """Tokens/s of the fastest lossless setting."""
        return max(self.whole(c).tokens_per_second for c in self.swept if c.threshold == 0.0)

    def _likely(self, whole: Whole, wanted: float) -> bool:
        probability = power(
            problems=self._problems, accuracy=float(whole.target_right.mean()), retention=whole.retention,
            churn=float((whole.right != whole.target_right).mean()), wanted=wanted, delta=level(_CONFIDENCE),
        )  # fmt: skip
        return probability >= _LIKELY


def run_all(
    pool: Pool, forecast: PooledForecast, space: Space, problems: Sequence[Problem], wanted: float, seed: int
) -> dict[str, Way]:
    """Runs all ways on the same problems. The table decodes all of them, the others the tuning part."""
    parts = tuning_and_certification(problems)
    ours = calibrate_on_pool(CountingPool(pool, reuse=True), forecast, space, *parts, wanted, _CONFIDENCE)
    most: Mapping[str, float] = pool.about["thresholds_below"]
    ways = {
        "baseline": Way(ours.baseline, None),
        "search": Way(ours.search, ours.tuned),
        "certificate": Way(ours.certificate, ours.certified),
    }

    def rival(name: str, some: Sequence[Problem], choose: Callable[[Estimates], Setting | None]) -> None:
        decode = CountingPool(pool, reuse=False)
        estimates = Estimates(decode, some, wanted)
        alone = Spent.by(decode)
        chosen = choose(estimates)
        ways[name] = Way(Spent.by(decode) - alone, chosen)

    rival("table", problems, lambda estimates: table(estimates, _TABLE_ARM, most[_TABLE_ARM.divergence]))
    rival("bisection", ours.tuning, lambda estimates: bisection(estimates, space, most))
    rival("tpe", ours.tuning, lambda estimates: tpe(estimates, space, most, seed))
    return ways


def measure(pool: Pool, forecast: PooledForecast, wanted: float, runs: int, size: Size) -> dict[str, Any]:
    """Returns medians and quartiles over calibrations with one goal."""
    divergences, lengths = (tuple(sorted(set(of))) for of in zip(*pool.arms, strict=True))
    space = Space((_TABLE_ARM.rule,), divergences, lengths)
    made: list[dict[str, Way]] = []
    for seed in range(runs):
        drawn = draw(pool, size.pool, size.problems, np.random.default_rng(seed))
        made.append(run_all(pool, forecast, space, drawn, wanted, seed))
    truth = Truth(pool, space, forecast, size)
    best = dict.fromkeys(made[0], truth.best(wanted)) | {"certificate": truth.best_certifiable(wanted)}
    return {
        "wanted": wanted,
        "best": {"to_tune": best["search"], "to_certify": best["certificate"], "lossless": truth.lossless},
        "ways": {name: _summarise([ways[name] for ways in made], made, truth, wanted, best[name]) for name in best},
    }


def _summarise(
    ways: Sequence[Way], made: Sequence[Mapping[str, Way]], truth: Truth, wanted: float, best: float
) -> dict[str, Any]:
    """Returns statistics of one way.

    "of_the_best" are true speeds relative to `best`. "too_low" is the share of choices with too low a true retention.
    """
    chosen = [truth.whole(way.chosen) for way in ways if way.chosen is not None]
    tables = [ways["table"].spent.tokens for ways in made]
    return {
        "decodings": asdict(Spread.of([way.spent.decodings for way in ways])),
        "tokens": asdict(Spread.of([way.spent.tokens for way in ways])),
        "of_the_table": asdict(Spread.of([w.spent.tokens / table for w, table in zip(ways, tables, strict=True)])),
        "chose": len(chosen) / len(ways),
        "of_the_best": asdict(Spread.of([w.tokens_per_second / best for w in chosen])) if chosen else None,
        "too_low": sum(w.retention < wanted for w in chosen) / len(chosen) if chosen else None,
    }


def report(pool: Pool, forecast: PooledForecast, wanted: Sequence[float], runs: int, size: Size) -> dict[str, Any]:
    return {
        "machine": machine_facts(),
        "costs": asdict(pool.costs),
        "size": asdict(size),
        "runs": runs,
        "confidence": _CONFIDENCE,
        "wishes": [measure(pool, forecast, retention, runs, size) for retention in wanted],
    }


def as_markdown(results: Mapping[str, Any]) -> str:
    """Returns a table for every goal."""
    lines: list[str] = []
    for goal in results["wishes"]:
        best = {name: f"{speed:.0f}" for name, speed in goal["best"].items()}
        lines += [
            "",
            f"goal: retention {goal['wanted']}; tokens/s: lossless {best['lossless']}, fastest setting with this "
            f"retention {best['to_tune']}, fastest setting that is certified more often than not {best['to_certify']}",
            "",
            "| way | decodings | tokens | of the table's | speed, of the best | chose | retention too low |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(_row(name, way) for name, way in goal["ways"].items()),
        ]
    return "\n".join(lines)


def _row(name: str, way: Mapping[str, Any]) -> str:
    spent = [f"{way[of]['median']:,.0f}" for of in ("decodings", "tokens")]
    chose = way["of_the_best"] is not None
    speed, low = (_spread(way["of_the_best"]), f"{way['too_low']:.0%}") if chose else ("", "")
    return "| " + " | ".join([name, *spent, _spread(way["of_the_table"]), speed, f"{way['chose']:.0%}", low]) + " |"


def _spread(of: Mapping[str, float]) -> str:
    return f"{of['median']:.1%} [{of['low']:.1%}, {of['high']:.1%}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="calibrations per goal")
    parser.add_argument("--problems", type=int, default=Size.problems, help="of a calibration, both parts together")
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose numbers mean nothing")
    parser.add_argument("--pool", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "calibrate.json")
    options = parser.parse_args()
    pool = Pool.read(options.pool)
    wanted, runs = (_WANTED[:1], 2) if options.quick else (_WANTED, options.runs)
    results = report(pool, PooledForecast.read(pool, options.pool), wanted, runs, Size(problems=options.problems))
    write_json(results, options.out, indent=2)
    print(as_markdown(results))


if __name__ == "__main__":
    main()
