"""Cost of a calibration and speed of its setting, compared with other ways: `python benchmarks/calibrate.py [--quick]`.

Takes minutes. Each calibration draws its problems anew from the first 3,000 of the pool of real decodings; all ways to
choose a setting get the same ones. Decodings are looked up, and counted as what decoding would have emitted; tokens/s
follow from counted rounds and drafted tokens by costs (c, v) that were measured once. The forecast is a replay of other
problems, as many as a calibration traces.

The other ways are a table of thresholds, bisection, and Optuna's TPE, each in its simplest form, without a certificate
and without reuse of decodings. For them a setting is feasible where its retention on the given problems is at least
what is wanted, and they receive T_max, which they would have to find out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import optuna

from fsd_calib.certification.power import power
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Problem
from fsd_collectors.split import CERTIFICATION_SHARE, tuning_and_certification
from fsd_decoding.profile.setting import Setting
from lib.common.results import machine_facts, options_of, write_json
from lib.common.timing import Spread
from lib.pool import DELTA, TARGET, CountingPool, Pool, PooledForecast, Spent, Truth, Whole, calibrate_on_pool, draw

_WANTED = (0.97, 0.98, 0.99)
_POOL = 3_000  # the pool's first problems, which all arms have
_PROBLEMS = 1_319  # of a calibration; as many as GSM8K's test split has
_ARM = Setting("fsd-coupled", "js", 5)  # of the table
_TABLE, _HALVINGS, _TRIALS = 20, 8, 30  # thresholds of the table, steps of bisection, and trials of TPE
_LIKELY = 0.5  # probability of passing from which on a setting counts as certifiable


@dataclass(frozen=True)
class Way:
    """What one way decoded in one calibration, and the setting it chose, if any."""

    spent: Spent
    chosen: Setting | None


class Estimates:
    """Estimates of settings on some problems, and those that are feasible by their estimate."""

    def __init__(self, pool: Pool, problems: Sequence[Problem], wanted: float) -> None:
        self._decode, self._wanted = CountingPool(pool, reuse=False), wanted
        self._evaluator = Evaluator(self._decode, problems, "tuning")
        self._solved = self._evaluator.measure(TARGET).correct.sum()
        self._alone = Spent.by(self._decode)
        self.feasible: dict[Setting, float] = {}  # with their tokens/s

    def is_feasible(self, configuration: Setting) -> bool:
        measured = self._evaluator.measure(configuration)
        if measured.correct.sum() < self._wanted * self._solved:
            return False
        costs = self._decode.pool.costs
        speed = costs.tokens_per_second(measured.tokens, measured.rounds, measured.drafted)
        self.feasible[configuration] = float(speed)
        return True

    def way(self) -> Way:
        """The fastest feasible setting, and what was decoded to find it, the target's own texts excepted."""
        fastest = max(self.feasible, key=lambda configuration: self.feasible[configuration], default=None)
        return Way(Spent.by(self._decode) - self._alone, fastest)


def table(estimates: Estimates, most: float) -> Way:
    """Tries evenly spaced thresholds of one arm."""
    for threshold in most * np.arange(1, _TABLE + 1) / _TABLE:
        estimates.is_feasible(_ARM.at(float(threshold)))
    return estimates.way()


def bisection(estimates: Estimates, space: Space, most: Mapping[str, float]) -> Way:
    """Seeks the largest feasible threshold of every arm by halving [0, T_max]."""
    for arm in chain.from_iterable(space.families):
        low, high = 0.0, most[arm.score]
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if estimates.is_feasible(arm.at(middle)) else (low, middle)
    return estimates.way()


def tpe(estimates: Estimates, space: Space, most: Mapping[str, float], seed: int) -> Way:
    """Runs an Optuna study over all arms and T as a share of T_max, with retention as a constraint."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    def objective(trial: optuna.Trial) -> float:
        score = trial.suggest_categorical("score", space.scores)
        length = trial.suggest_categorical("draft_length", space.draft_lengths)
        threshold = most[score] * trial.suggest_float("threshold", 0.0, 1.0)
        configuration = Setting(space.rules[0], score, length, threshold)
        trial.set_constraint("retention", 0.0 if estimates.is_feasible(configuration) else 1.0)
        return estimates.feasible.get(configuration, 0.0)

    study.optimize(objective, n_trials=_TRIALS)
    return estimates.way()


def run_all(
    pool: Pool, forecast: PooledForecast, problems: Sequence[Problem], wanted: float, seed: int
) -> dict[str, Way]:
    """Runs all ways on the same problems. The table decodes all of them, the others the tuning part."""
    tuning, certification = tuning_and_certification(problems)
    space, most = pool.space(), pool.about["thresholds_below"]
    ours = calibrate_on_pool(CountingPool(pool, reuse=True), forecast, space, tuning, certification, wanted)
    return {
        "baseline": Way(ours.baseline, None),
        "search": Way(ours.search, ours.tuned),
        "certificate": Way(ours.certificate, ours.certified),
        "table": table(Estimates(pool, problems, wanted), most[_ARM.score]),
        "bisection": bisection(Estimates(pool, tuning, wanted), space, most),
        "tpe": tpe(Estimates(pool, tuning, wanted), space, most, seed),
    }


def measure(pool: Pool, forecast: PooledForecast, wanted: float, runs: int, problems: int) -> dict[str, Any]:
    """Returns medians and quartiles over calibrations of so many problems with one goal."""

    def certifiable(whole: Whole) -> bool:
        """Whether a setting is certified more often than not."""
        probability = power(
            problems=round(problems * CERTIFICATION_SHARE), accuracy=whole.accuracy, retention=whole.retention,
            churn=whole.churn, wanted=wanted, delta=DELTA,
        )  # fmt: skip
        return probability >= _LIKELY

    made = []
    for seed in range(runs):
        drawn = draw(pool, _POOL, problems, np.random.default_rng(seed))
        made.append(run_all(pool, forecast, drawn, wanted, seed))
    truth = Truth(pool, forecast, pool.space(), np.arange(_POOL))
    to_tune, to_certify = truth.best(lambda whole: whole.retention >= wanted), truth.best(certifiable)
    best = dict.fromkeys(made[0], to_tune) | {"certificate": to_certify}
    return {
        "wanted": wanted,
        "best": {"to_tune": to_tune, "to_certify": to_certify, "lossless": truth.lossless},
        "ways": {name: _summarise([ways[name] for ways in made], made, truth, wanted, best[name]) for name in best},
    }


def _summarise(
    ways: Sequence[Way], made: Sequence[Mapping[str, Way]], truth: Truth, wanted: float, best: float
) -> dict[str, Any]:
    """Returns statistics of one way.

    "of_the_best" are true speeds relative to `best`. "too_low" is the share of choices with too low a true retention.
    """
    chosen = [truth.of(way.chosen) for way in ways if way.chosen is not None]
    tables = [ways["table"].spent.tokens for ways in made]
    return {
        "decodings": Spread.of([way.spent.decodings for way in ways]),
        "tokens": Spread.of([way.spent.tokens for way in ways]),
        "of_the_table": Spread.of([w.spent.tokens / table for w, table in zip(ways, tables, strict=True)]),
        "chose": len(chosen) / len(ways),
        "of_the_best": Spread.of([whole.tokens_per_second / best for whole in chosen]) if chosen else None,
        "too_low": sum(whole.retention < wanted for whole in chosen) / len(chosen) if chosen else None,
    }


def as_markdown(goals: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table for every goal."""
    lines: list[str] = []
    for goal in goals:
        best = {name: f"{speed:.0f}" for name, speed in goal["best"].items()}
        lines += [
            "",
            f"goal: retention {goal['wanted']}; tokens/s: lossless {best['lossless']}, fastest setting with this "
            f"retention {best['to_tune']}, fastest setting that is certified more often than not {best['to_certify']}",
            "",
            "| way | decodings | tokens | of the table's | speed, of the best | chose | retention too low |",
            "| --- " * 7 + "|",
            *(_row(name, way) for name, way in goal["ways"].items()),
        ]
    return "\n".join(lines)


def _row(name: str, way: Mapping[str, Any]) -> str:
    spent = [f"{way[of].median:,.0f}" for of in ("decodings", "tokens")]
    speed, low = ("", "") if way["of_the_best"] is None else (_spread(way["of_the_best"]), f"{way['too_low']:.0%}")
    return "| " + " | ".join([name, *spent, _spread(way["of_the_table"]), speed, f"{way['chose']:.0%}", low]) + " |"


def _spread(of: Spread) -> str:
    return f"{of.median:.1%} [{of.low:.1%}, {of.high:.1%}]"


def main() -> None:
    parser = options_of(__doc__, "calibrate.json")
    parser.add_argument("--runs", type=int, default=100, help="calibrations per goal")
    parser.add_argument("--problems", type=int, default=_PROBLEMS, help="of a calibration, both parts together")
    options, machine, pool = parser.parse_args(), machine_facts(), Pool.read()
    wanted, runs = (_WANTED[:1], 2) if options.quick else (_WANTED, options.runs)
    forecast = PooledForecast.read(pool)
    goals = [measure(pool, forecast, retention, runs, options.problems) for retention in wanted]
    about = {"pool": _POOL, "problems": options.problems}
    write_json({"machine": machine, "costs": pool.costs, "size": about, "runs": runs, "wishes": goals}, options.out)
    print(as_markdown(goals))


if __name__ == "__main__":
    main()
