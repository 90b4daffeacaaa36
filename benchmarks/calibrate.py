"""What a calibration costs and how good its setting is: `python benchmarks/calibrate.py [--quick]`; takes minutes.

Knows the pool of real decodings of the bundled pair, and other ways to choose a setting. Each calibration draws its
problems anew from the pool's first 3,000; all ways see the same ones. Decodings are looked up, and counted as what
decoding them would have emitted; nothing else is simulated but the clock: tokens/s are counted rounds and drafted
tokens by costs (c, v) measured once. The forecast is a replay of other problems, as many as a calibration traces.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fsd_calib.certification.power import power
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Problem
from fsd_collectors.split import CERTIFICATION_SHARE, tuning_and_certification
from lib.calibration.pooled import FOLDER, Counted, Pool, PooledForecast, Whole
from lib.calibration.pooled_calibration import Spent, calibrated, draw, level
from lib.calibration.rivals import Looked, bisection, table, tpe
from lib.common.machine import facts
from lib.common.timing import Spread

_CONFIDENCE = 0.95
_WANTED = (0.97, 0.98, 0.99)
_TABLE_ARM = Configuration("fsd-coupled", "js", 5)
_POINTS = 200  # thresholds an arm, of the exhaustive sweep
_LIKELY = 0.5  # the chance to pass from which on the test could certify


@dataclass(frozen=True)
class Size:
    """pool: its first problems, which all arms have. problems: of a calibration, as many as GSM8K's test part has."""

    pool: int = 3_000
    problems: int = 1_319

    @property
    def certification(self) -> int:
        return round(self.problems * CERTIFICATION_SHARE)


@dataclass(frozen=True)
class Way:
    """What one way spent on one calibration, and the setting it chose; None: none."""

    spent: Spent
    chosen: Configuration | None


class Truth:
    """All settings on all problems: the exhaustive sweep."""

    def __init__(self, pool: Pool, space: Space, forecast: PooledForecast, size: Size) -> None:
        self.whole: Callable[[Configuration], Whole] = lru_cache(None)(lambda c: pool.whole(c, np.arange(size.pool)))
        self._space, self._forecast, self._problems = space, forecast, size.certification

    @cached_property
    def swept(self) -> list[Configuration]:
        """Thresholds even in the logit of the share they accept, of every arm; the lossless one among them."""
        shares = np.linspace(self._forecast.lowest, self._forecast.highest, _POINTS)
        return [
            arm.at(threshold)
            for family in self._space.families
            for arm in family
            for threshold in sorted({0.0} | {self._forecast.threshold(arm, float(at)) for at in shares})
        ]

    def best(self, wanted: float) -> float:
        """Tokens/s of the fastest that keeps what is wanted."""
        return max(w.tokens_per_second for c in self.swept if (w := self.whole(c)).retention >= wanted)

    def best_certifiable(self, wanted: float) -> float:
        """Of the fastest that a certification part of that size certifies more often than not."""
        return max(w.tokens_per_second for c in self.swept if self._likely(w := self.whole(c), wanted))

    @property
    def lossless(self) -> float:
        """Of the fastest that loses nothing."""
        return max(self.whole(c).tokens_per_second for c in self.swept if c.threshold == 0.0)

    def _likely(self, whole: Whole, wanted: float) -> bool:
        chance = power(
            problems=self._problems, accuracy=float(whole.target_right.mean()), retention=whole.retention,
            churn=float((whole.right != whole.target_right).mean()), wanted=wanted, delta=level(_CONFIDENCE),
        )  # fmt: skip
        return chance >= _LIKELY


def one(
    pool: Pool, forecast: PooledForecast, space: Space, problems: Sequence[Problem], wanted: float, seed: int
) -> dict[str, Way]:
    """All ways on the same problems. The table looks at all of them, the others at the tuning part."""
    parts = tuning_and_certification(problems)
    ours = calibrated(Counted(pool, reuse=True), forecast, space, *parts, wanted, _CONFIDENCE)
    most: Mapping[str, float] = pool.about["thresholds_below"]
    ways = {
        "baseline": Way(ours.baseline, None),
        "search": Way(ours.search, ours.tuned),
        "certificate": Way(ours.certificate, ours.certified),
    }

    def rival(name: str, seen: Sequence[Problem], choose: Callable[[Looked], Configuration | None]) -> None:
        decode = Counted(pool, reuse=False)
        looked = Looked(decode, seen, wanted)
        alone = Spent.by(decode)
        chosen = choose(looked)
        ways[name] = Way(Spent.by(decode) - alone, chosen)

    rival("table", problems, lambda looked: table(looked, _TABLE_ARM, most[_TABLE_ARM.divergence]))
    rival("bisection", ours.tuning, lambda looked: bisection(looked, space, most))
    rival("tpe", ours.tuning, lambda looked: tpe(looked, space, most, seed))
    return ways


def measured(pool: Pool, forecast: PooledForecast, wanted: float, runs: int, size: Size) -> dict[str, Any]:
    """Medians and quartiles over calibrations, for one wish."""
    divergences, lengths = (tuple(sorted(set(of))) for of in zip(*pool.arms, strict=True))
    space = Space((_TABLE_ARM.rule,), divergences, lengths)
    made: list[dict[str, Way]] = []
    for seed in range(runs):
        drawn = draw(pool, size.pool, size.problems, np.random.default_rng(seed))
        made.append(one(pool, forecast, space, drawn, wanted, seed))
    truth = Truth(pool, space, forecast, size)
    best = dict.fromkeys(made[0], truth.best(wanted)) | {"certificate": truth.best_certifiable(wanted)}
    return {
        "wanted": wanted,
        "best": {"to_tune": best["search"], "to_certify": best["certificate"], "lossless": truth.lossless},
        "ways": {name: _described([ways[name] for ways in made], made, truth, wanted, best[name]) for name in best},
    }


def _described(
    ways: Sequence[Way], made: Sequence[Mapping[str, Way]], truth: Truth, wanted: float, best: float
) -> dict[str, Any]:
    """of_the_best: speeds, on all problems of the pool. too_low: the share of choices that keep less than wanted."""
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
        "machine": facts(),
        "costs": asdict(pool.costs),
        "size": asdict(size),
        "runs": runs,
        "confidence": _CONFIDENCE,
        "wishes": [measured(pool, forecast, one_wanted, runs, size) for one_wanted in wanted],
    }


def printed(found: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for goal in found["wishes"]:
        best = {name: f"{speed:.0f}" for name, speed in goal["best"].items()}
        lines += [
            "",
            f"retention {goal['wanted']} wanted; tokens/s: lossless {best['lossless']}, the fastest that keeps it "
            f"{best['to_tune']}, the fastest of these that is certified more often than not {best['to_certify']}",
            "",
            "| way | decodings | tokens | of the table's | speed, of the best | chose | kept too little |",
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
    parser.add_argument("--runs", type=int, default=100, help="calibrations a wish")
    parser.add_argument("--problems", type=int, default=Size.problems, help="of a calibration, both parts together")
    parser.add_argument("--quick", action="store_true", help="few calibrations: whether it runs, not what it costs")
    parser.add_argument("--pool", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "calibrate.json")
    options = parser.parse_args()
    pool = Pool.read(options.pool)
    wanted, runs = (_WANTED[:1], 2) if options.quick else (_WANTED, options.runs)
    found = report(pool, PooledForecast.read(pool, options.pool), wanted, runs, Size(problems=options.problems))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n")
    print(printed(found))


if __name__ == "__main__":
    main()
