"""One calibration for a wanted retention on problems of the pool: the real split, search, freezing and certificate.

Knows the order of the steps, as `fsd_calib.calibration.api` has it, and counts what each would have decoded. Only the
decoder is replaced, by the pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fsd_calib.calibration.goal import Goal
from fsd_calib.calibration.pass_probability import bar_of, chance_of
from fsd_calib.calibration.run import HOPELESS
from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import Holdout
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.progress import Silent
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.max_speed import MaxSpeed
from fsd_calib.search.search import SearchResult, freeze, search
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

    evaluator: Evaluator
    alone: Measurement
    searched: SearchResult
    objective: MaxSpeed
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
    evaluator = Evaluator(decode, tuning, "tuning")
    lossless = _lossless(evaluator, space, forecast)
    alone = evaluator.measure(TARGET)
    baseline = Spent.by(decode)
    goal, delta = Goal(min_acc=wanted, confidence=confidence), level(confidence)
    bar = bar_of(goal, certification, delta, alone)
    objective = MaxSpeed(chance_of(goal, certification, delta), f"retention {wanted}", bar, lossless)
    searched = search(evaluator, alone, forecast, space, objective, None, "pool", TRIALS, Silent())
    return Tuned(evaluator, alone, searched, objective, lossless, baseline)


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
        tuned=max(held, key=lambda t: t.tokens_per_second).configuration if held else None,
        frozen=frozen,
        certified=max(passed, key=lambda c: forecast.measured(evaluator.measure(c)), default=None),
        trials=len(known.searched.trials),
        baseline=known.baseline,
        search=until_frozen - known.baseline,
        certificate=Spent.by(decode) - until_frozen,
    )


def _lossless(evaluator: Evaluator, space: Space, forecast: Forecast) -> float:
    """Tokens/s of the lossless rule, whose churn is the floor of all, at the draft length that suits it best."""
    arms = [Configuration("coupled", space.divergences[0], length) for length in space.draft_lengths]
    best = max(arms, key=lambda arm: forecast.tokens_per_second(replace(arm, rule=space.rules[0], threshold=0.0)))
    return forecast.measured(evaluator.measure(best, _BASELINE))


def _passed(
    evaluator: Evaluator, tuning: Sequence[Problem], frozen: Sequence[Configuration], wanted: float, confidence: float
) -> Sequence[Configuration]:
    if not frozen:
        return ()
    with AttemptLedger(None) as ledger:
        ledger.tuned_on("pool", tuning)
        claim = Claim(wanted, problems=len(evaluator.problems))
        verdict = Holdout(evaluator, ledger, "pool", "").open(frozen, TARGET, claim, confidence).decide()
    return () if verdict.passed is None else frozen[: verdict.passed + 1]
