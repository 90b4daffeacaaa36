"""One calibration for a wanted retention on problems of the pool: the real split, search, freezing and certificate.

Knows the order of the steps, as `fsd_calib.calibration.api` has it, and counts what each would have decoded. Only the
decoder is replaced, by the pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fsd_calib.calibration.goal import Wish
from fsd_calib.calibration.pass_probability import bar_of, chance_of
from fsd_calib.calibration.run import HOPELESS
from fsd_calib.certification.attempt_ledger import Ledger
from fsd_calib.certification.holdout import Sealed
from fsd_calib.certification.sequence import Claim
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Bench
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.progress import Silent
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.max_speed import KeepAccuracy
from fsd_calib.search.search import Searched, freeze, search
from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Problem
from lib.calibration.pooled import TARGET, Counted, Pool

TRIALS = 30
_BASELINE = 256  # tuning problems that the lossless rule decodes


@dataclass(frozen=True)
class Spent:
    """What was decoded."""

    decodings: int
    tokens: int

    @classmethod
    def by(cls, counted: Counted) -> Spent:
        return cls(counted.decodings, counted.tokens)

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.decodings + other.decodings, self.tokens + other.tokens)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.decodings - other.decodings, self.tokens - other.tokens)


@dataclass(frozen=True)
class Calibrated:
    """tuned: the fastest setting that held on the tuning part, what a search without a certificate would return."""

    tuning: Sequence[Problem]
    certification: Sequence[Problem]
    tuned: Configuration | None
    frozen: Sequence[Configuration]
    certified: Configuration | None
    trials: int
    baseline: Spent
    search: Spent
    certificate: Spent


def draw(pool: Pool, first: int, count: int, random: np.random.Generator) -> list[Problem]:
    """So many of the pool's first problems, without replacement, in the pool's order."""
    return [pool.problems[i] for i in np.sort(random.choice(first, count, replace=False)).tolist()]


def level(confidence: float) -> float:
    """Of a first attempt: one that nobody made before has the largest share of all that is allowed."""
    return (1 - confidence) * 6 / math.pi**2


@dataclass(frozen=True)
class Tuned:
    """What a search knows in the end, before anything is frozen. lossless: tokens/s of the lossless rule."""

    bench: Bench
    alone: Measurement
    searched: Searched
    goal: KeepAccuracy
    lossless: float
    baseline: Spent


def tuned(
    decode: Counted,
    forecast: Forecast,
    space: Space,
    tuning: Sequence[Problem],
    certification: int,
    wanted: float,
    confidence: float,
) -> Tuned:
    """The baseline and the search, for so many certification problems."""
    bench = Bench(decode, tuning, "tuning")
    lossless = _lossless(bench, space, forecast)
    alone = bench.measure(TARGET)
    baseline = Spent.by(decode)
    wish, delta = Wish(min_acc=wanted, confidence=confidence), level(confidence)
    bar = bar_of(wish, certification, delta, alone)
    goal = KeepAccuracy(chance_of(wish, certification, delta), f"retention {wanted}", bar, lossless)
    searched = search(bench, alone, forecast, space, goal, None, "pool", TRIALS, Silent())
    return Tuned(bench, alone, searched, goal, lossless, baseline)


def calibrated(
    decode: Counted,
    forecast: Forecast,
    space: Space,
    tuning: Sequence[Problem],
    certification: Sequence[Problem],
    wanted: float,
    confidence: float,
) -> Calibrated:
    """As `fsd-calibrate` has its steps, and with its defaults."""
    known = tuned(decode, forecast, space, tuning, len(certification), wanted, confidence)
    bench, goal = known.bench, known.goal
    frozen = [
        configuration
        for configuration in freeze(known.searched, space, bench, known.alone, forecast, goal)
        if forecast.measured(bench.measure(configuration)) > known.lossless
        and goal.chance(bench.measure(configuration), known.alone) >= HOPELESS
    ]
    until_frozen = Spent.by(decode)
    passed = _passed(Bench(decode, certification, "certification"), tuning, frozen, wanted, confidence)
    held = [t for t in known.searched.tried if t.feasible]
    return Calibrated(
        tuning=tuning,
        certification=certification,
        tuned=max(held, key=lambda t: t.tokens_per_second).configuration if held else None,
        frozen=frozen,
        certified=max(passed, key=lambda c: forecast.measured(bench.measure(c)), default=None),
        trials=len(known.searched.tried),
        baseline=known.baseline,
        search=until_frozen - known.baseline,
        certificate=Spent.by(decode) - until_frozen,
    )


def _lossless(bench: Bench, space: Space, forecast: Forecast) -> float:
    """Tokens/s of the lossless rule, whose churn is the floor of all, at the draft length that suits it best."""
    arms = [Configuration("coupled", space.divergences[0], length) for length in space.draft_lengths]
    best = max(arms, key=lambda arm: forecast.tokens_per_second(replace(arm, rule=space.rules[0], threshold=0.0)))
    return forecast.measured(bench.measure(best, _BASELINE))


def _passed(
    bench: Bench, tuning: Sequence[Problem], frozen: Sequence[Configuration], wanted: float, confidence: float
) -> Sequence[Configuration]:
    if not frozen:
        return ()
    with Ledger(None) as ledger:
        ledger.tuned_on("pool", tuning)
        claim = Claim(wanted, problems=len(bench.problems))
        verdict = Sealed(bench, ledger, "pool", "").open(frozen, TARGET, claim, confidence).decide()
    return () if verdict.passed is None else frozen[: verdict.passed + 1]
