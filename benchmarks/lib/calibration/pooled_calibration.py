"""One calibration on problems of the pool, with the real search, freezing and certificate.

Its steps are those of `fsd_calib.calibration.api`. Only the decoder is replaced, by the pool, which counts what each
step would have decoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fsd_calib.calibration.run import HOPELESS, chance_of, pass_model_of
from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import Holdout
from fsd_calib.config import Goal
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.max_speed import MaxSpeed
from fsd_calib.search.search import SearchResult, freeze, search
from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Problem
from fsd_common.progress.base import Silent
from fsd_decoding.profile.setting import Setting
from lib.calibration.pool import TARGET, CountingPool, Pool

TRIALS = 30
_BASELINE = 256  # tuning problems that the lossless rule decodes


@dataclass(frozen=True)
class Spent:
    """What a step of a calibration decoded."""

    decodings: int
    tokens: int

    @classmethod
    def by(cls, counted: CountingPool) -> Spent:
        return cls(counted.decodings, counted.tokens)

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.decodings + other.decodings, self.tokens + other.tokens)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.decodings - other.decodings, self.tokens - other.tokens)


@dataclass(frozen=True)
class Calibrated:
    """The outcome of a calibration.

    `tuned` is the fastest feasible setting on the tuning part, which a search without a certificate would return.
    """

    tuning: Sequence[Problem]
    certification: Sequence[Problem]
    tuned: Setting | None
    frozen: Sequence[Setting]
    certified: Setting | None
    trials: int
    baseline: Spent
    search: Spent
    certificate: Spent


def draw(pool: Pool, first: int, count: int, random: np.random.Generator) -> list[Problem]:
    """Draws `count` of the pool's `first` problems without replacement, in the pool's order."""
    return [pool.problems[i] for i in np.sort(random.choice(first, count, replace=False)).tolist()]


def level(confidence: float) -> float:
    """Returns the significance level of a first attempt."""
    return (1 - confidence) * 6 / math.pi**2


@dataclass(frozen=True)
class TuningRecord:
    """The state after a search, before candidates are frozen. lossless: tokens/s of the lossless rule."""

    evaluator: Evaluator
    alone: Measurement
    searched: SearchResult
    objective: MaxSpeed
    lossless: float
    baseline: Spent


def tune(
    decode: CountingPool,
    forecast: Forecast,
    space: Space,
    tuning: Sequence[Problem],
    certification: int,
    wanted: float,
    confidence: float,
) -> TuningRecord:
    """Runs the baseline and the search. certification: number of certification problems."""
    evaluator = Evaluator(decode, tuning, "tuning")
    lossless = _lossless(evaluator, space, forecast)
    alone = evaluator.measure(TARGET)
    baseline = Spent.by(decode)
    goal, delta = Goal(min_acc=wanted, confidence=confidence), level(confidence)
    bar = pass_model_of(goal, certification, delta, alone)
    objective = MaxSpeed(chance_of(goal, certification, delta), f"retention {wanted}", bar, lossless)
    searched = search(evaluator, alone, forecast, space, objective, None, "pool", TRIALS, Silent())
    return TuningRecord(evaluator, alone, searched, objective, lossless, baseline)


def calibrate_on_pool(
    decode: CountingPool,
    forecast: Forecast,
    space: Space,
    tuning: Sequence[Problem],
    certification: Sequence[Problem],
    wanted: float,
    confidence: float,
) -> Calibrated:
    """Runs the steps of `fsd-calibrate` with its defaults."""
    known = tune(decode, forecast, space, tuning, len(certification), wanted, confidence)
    evaluator, objective = known.evaluator, known.objective
    frozen = [
        configuration
        for configuration in freeze(known.searched, space, evaluator, known.alone, forecast, objective)
        if forecast.measured(evaluator.measure(configuration)) > known.lossless
        and objective.chance(evaluator.measure(configuration), known.alone) >= HOPELESS
    ]
    until_frozen = Spent.by(decode)
    passed = _passed(Evaluator(decode, certification, "certification"), tuning, frozen, wanted, confidence)
    held = [t for t in known.searched.trials if t.feasible]
    return Calibrated(
        tuning=tuning,
        certification=certification,
        tuned=max(held, key=lambda t: t.tokens_per_second).setting if held else None,
        frozen=frozen,
        certified=max(passed, key=lambda c: forecast.measured(evaluator.measure(c)), default=None),
        trials=len(known.searched.trials),
        baseline=known.baseline,
        search=until_frozen - known.baseline,
        certificate=Spent.by(decode) - until_frozen,
    )


def _lossless(evaluator: Evaluator, space: Space, forecast: Forecast) -> float:
    """Returns tokens/s of the lossless rule, whose churn is the numerical floor, at its best draft length."""
    arms = [Setting("coupled", space.divergences[0], length) for length in space.draft_lengths]
    best = max(arms, key=lambda arm: forecast.tokens_per_second(replace(arm, rule=space.rules[0], threshold=0.0)))
    return forecast.measured(evaluator.measure(best, _BASELINE))


def _passed(
    evaluator: Evaluator, tuning: Sequence[Problem], frozen: Sequence[Setting], wanted: float, confidence: float
) -> Sequence[Setting]:
    if not frozen:
        return ()
    with AttemptLedger(None) as ledger:
        ledger.tuned_on("pool", tuning)
        claim = Claim(wanted, problems=len(evaluator.problems))
        verdict = Holdout(evaluator, ledger, "pool", "").open(frozen, TARGET, claim, confidence).decide()
    return () if verdict.passed is None else frozen[: verdict.passed + 1]
