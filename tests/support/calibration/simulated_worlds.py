"""Simulated worlds to search in: each problem is lost at a known share u, and speeds follow a formula.

A world holds the truth that a search is to find. A text changes at certain thresholds only, so a decoding is valid for
an interval; `fresh` counts the decodings that a cache of intervals would not have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fsd_calib.certification.power import power
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Decoding, Measurement, Seeds
from fsd_calib.search.max_speed import MaxSpeed
from fsd_calib.search.space import logit
from fsd_calib.search.surrogate import PassModel
from fsd_calib.tasks import Problem
from fsd_collectors.replay import CostModel
from fsd_decoding.profile.certificate import OutcomeCounts
from fsd_decoding.profile.setting import Setting

COSTS = CostModel(draft_step=0.006, verify=0.010)
TOKENS = 100
EXACT = 0.3  # the share of tokens that a rule accepts whatever T is
TARGET = Setting("target", "js", 1)
LOWEST, HIGHEST = logit(0.1), logit(0.9995)


def problems(count: int) -> list[Problem]:
    return [Problem(1000 + i, f"{i}?", f"{i}?", str(i), "tuning") for i in range(count)]


def tokens_a_round(share: float, draft_length: int) -> float:
    accepts = EXACT + (1 - EXACT) * share
    return (1 - accepts ** (draft_length + 1)) / (1 - accepts)


@dataclass(eq=False)
class Formula:
    """A forecast that errs by up to `drift`, as replay does. Thresholds equal shares, whatever the score."""

    lowest: float = LOWEST
    highest: float = HIGHEST
    drift: float = 0.0

    def threshold(self, arm: Setting, logit_share: float) -> float:
        return 1 / (1 + math.exp(-logit_share))

    def tokens_per_second(self, configuration: Setting) -> float:
        share, length = configuration.threshold or 0.0, configuration.draft_length
        rounds = TOKENS / tokens_a_round(share, length) * (1 - self.drift * share**20)
        return float(COSTS.tokens_per_second(TOKENS, rounds, rounds * length))

    def measured(self, measurement: Measurement) -> float:
        return float(COSTS.tokens_per_second(measurement.tokens, measurement.rounds, measurement.drafted))


@dataclass
class World:
    """A `Decode` over problems with a loss point each, in logit(u): from there on the answer is wrong.

    Args:
        count: number of problems.
        accuracy: of the target.
        spread, middle: of the logistic distribution of loss points.
        gained: share of problems that a large enough u solves and the target does not.
        lapses: share of problems that are also wrong in one interval below their loss point, so that curves are uneven.
        shifts: by score or policy, what is added to all points.
        before: called with each configuration before it is decoded.
    """

    count: int = 600
    seed: int = 0
    accuracy: float = 0.8
    spread: float = 2.0
    middle: float = 9.5
    gained: float = 0.01
    lapses: float = 0.0
    shifts: dict[str, float] = field(default_factory=dict)
    calls: list[tuple[Setting, int]] = field(default_factory=list)
    before: Callable[[Setting], None] = lambda configuration: None

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.right = random.random(self.count) < self.accuracy
        self.lost = random.logistic(self.middle, self.spread / 2, self.count)
        self.found = np.where(random.random(self.count) < self.gained, random.uniform(2, 6, self.count), np.inf)
        self.lapse = np.where(random.random(self.count) < self.lapses, random.uniform(0, 6, self.count), np.inf)
        self.changes = np.sort(random.normal(6, 2.5, (self.count, 4)), axis=1)  # of texts, right or wrong
        self.pace = random.lognormal(0, 0.1, self.count)
        self.seen: set[tuple[object, ...]] = set()

    def evaluator(self) -> Evaluator:
        return Evaluator(self, problems(self.count), "tuning")

    def target(self) -> Measurement:
        return Evaluator(self, problems(self.count), "tuning").measure(TARGET)

    def correct(self, configuration: Setting) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        if configuration.rule == "target":
            return self.right
        at = self._place(configuration)
        lapsed = (self.lapse <= at) & (at < self.lapse + 0.5)
        return np.where(self.right, (at < self.lost) & ~lapsed, at >= self.found)

    def retention(self, configuration: Setting) -> float:
        return float(self.correct(configuration).sum() / self.right.sum())

    def __call__(self, configuration: Setting, requested: Sequence[Problem]) -> list[Seeds]:
        self.before(configuration)
        if configuration.rule != "target":
            self.calls.append((configuration, len(requested)))
        numbers = [problem.id - 1000 for problem in requested]
        correct = self.correct(configuration)[numbers].tolist()
        if configuration.threshold is None:
            return [(Decoding(each, "", TOKENS, TOKENS, 0, 0),) for each in correct]
        arm, length = configuration.arm, configuration.draft_length
        texts = (self.changes[numbers] < self._place(configuration)).sum(1)
        self.seen.update((arm, i, text) for i, text in zip(numbers, texts.tolist(), strict=True))
        needed = TOKENS * self.pace[numbers] / tokens_a_round(configuration.threshold, length)
        return [
            (Decoding(each, "", TOKENS, rounds, rounds * length, TOKENS - rounds),)
            for each, rounds in zip(correct, np.rint(needed).clip(1).astype(int).tolist(), strict=True)
        ]

    def _place(self, configuration: Setting) -> float:
        """Returns logit(u) less the configuration's shifts."""
        assert configuration.threshold is not None
        policy = configuration.policy and configuration.policy.identity
        shifts = (self.shifts.get(name or "", 0.0) for name in (configuration.score, policy))
        return logit(configuration.threshold) - sum(shifts)

    @property
    def decoded(self) -> int:
        """Number of decodings over all trials, without any reuse."""
        return sum(count for _, count in self.calls)

    @property
    def fresh(self) -> int:
        """Number of decodings over all trials, with reuse by interval."""
        return len(self.seen)


def pass_probability(wanted: float, certification: int) -> Callable[[Measurement, Measurement], float]:
    """Returns a function for the probability of passing the test at level .05 on that many problems."""

    def probability(fuzzy: Measurement, target: Measurement) -> float:
        outcomes = OutcomeCounts.of(target.correct[:, 0].tolist(), fuzzy.correct[:, 0].tolist())
        return power(problems=certification, accuracy=target.accuracy, churn=outcomes.churn,
                     retention=outcomes.retention, wanted=wanted, delta=0.05)  # fmt: skip

    return probability


def keep_accuracy(world: World, wanted: float = 0.98, certification: int = 1319) -> MaxSpeed:
    """Returns the objective of the largest speed at this retention, with lossless decoding at its best L to beat."""
    target = world.target()
    bar = PassModel(wanted, target.accuracy, world.count, certification, 0.05)
    arms = [Setting("fsd-coupled", "js", length, 0.0) for length in range(1, 9)]
    lossless = max(map(Formula().tokens_per_second, arms))
    return MaxSpeed(pass_probability(wanted, certification), f"{wanted:.0%}", bar, lossless)
