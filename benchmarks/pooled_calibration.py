"""One calibration for a wanted retention on problems of the pool: the real split, search, freezing and certificate.

Knows the order of the steps, as `fsd_calib.calibration` has it, and counts what each would have decoded. Only the
decoder is replaced, by the pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsd_calib.certifying.attempts import Ledger
from fsd_calib.certifying.certify import Claim
from fsd_calib.certifying.sealed import Sealed
from fsd_calib.chances import chance_of
from fsd_calib.measuring.bench import Bench
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.progress import Silent
from fsd_calib.searching.forecast import Forecast
from fsd_calib.searching.keep_accuracy import KeepAccuracy
from fsd_calib.searching.search import freeze, search
from fsd_calib.searching.space import Space
from fsd_calib.tasks import Problem
from fsd_calib.wish import Wish
from fsd_collectors.split import tuning_and_certification
from pooled import TARGET, Counted, Pool

TRIALS = 30


@dataclass(frozen=True)
class Spent:
    """What was decoded."""

    decodings: int
    tokens: int

    @classmethod
    def by(cls, counted: Counted) -> Spent:
        return cls(counted.decodings, counted.tokens)

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


def calibrated(
    pool: Pool, forecast: Forecast, space: Space, problems: Sequence[Problem], wanted: float, confidence: float
) -> Calibrated:
    tuning, certification = tuning_and_certification(problems)
    decode = Counted(pool, reuse=True)
    bench = Bench(decode, tuning, "tuning")
    target = _baseline(bench, space)
    baseline = Spent.by(decode)
    wish = Wish(min_acc=wanted, confidence=confidence)
    goal = KeepAccuracy(chance_of(wish, len(certification), level(confidence)), f"retention {wanted}")
    searched = search(bench, target, forecast, space, goal, None, "pool", TRIALS, Silent())
    frozen = freeze(searched, bench, target, forecast, goal)
    until_frozen = Spent.by(decode)
    certified = _certified(Bench(decode, certification, "certification"), tuning, frozen, wanted, confidence)
    held = [t for t in searched.tried if t.feasible]
    return Calibrated(
        tuning=tuning,
        certification=certification,
        tuned=max(held, key=lambda t: t.tokens_per_second).configuration if held else None,
        frozen=frozen,
        certified=certified,
        trials=len(searched.tried),
        baseline=baseline,
        search=until_frozen - baseline,
        certificate=Spent.by(decode) - until_frozen,
    )


def _baseline(bench: Bench, space: Space) -> Measurement:
    """The target alone, and the lossless rule, whose churn is the floor of all."""
    bench.measure(Configuration("coupled", space.divergences[0], space.draft_lengths[0]))
    return bench.measure(TARGET)


def _certified(
    bench: Bench, tuning: Sequence[Problem], frozen: Sequence[Configuration], wanted: float, confidence: float
) -> Configuration | None:
    with Ledger(None) as ledger:
        ledger.tuned_on("pool", tuning)
        claim = Claim(wanted, problems=len(bench.problems))
        verdict = Sealed(bench, ledger, "pool", "").open(frozen, TARGET, claim, confidence).decide()
    return None if verdict.passed is None else frozen[verdict.passed]
