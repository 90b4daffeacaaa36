"""Populations and calibrations drawn from them, many at once, for the tests of the guarantee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, norm

from fsd_calib.certifying.score_test import p_values

Counts = NDArray[np.int64]
Law = NDArray[np.float64]

WANTED = 0.98
THRESHOLDS = (np.arange(20) + 1) / 20  # as shares of drafted tokens accepted: the looser, the faster
_CHANCES = (0.95, 0.8, 0.5, 0.2)  # of passing, that the frozen sequence goes by

Shape = Callable[[Law], Law]
SHAPES: dict[str, Shape] = {  # retention by threshold
    "flat": lambda u: np.full_like(u, WANTED),  # whatever is certified is certified falsely
    "linear": lambda u: 1 - 0.05 * u,
    "cliff": lambda u: np.where(u < 0.5, 1.0, 0.97),
    "s": lambda u: 1 - 0.06 / (1 + np.exp(-12 * (u - 0.5))),
    "bump": lambda u: 0.99 - 0.03 * np.sin(2 * np.pi * u) ** 2,  # falls below, recovers, falls again
    "leak": lambda u: 1 - 0.022 * u,  # is over the edge only at the very end
}


@dataclass(frozen=True)
class World:
    """`churn`: flips of the loosest threshold, half lost and half gained, beside what its retention takes."""

    shape: str
    problems: int  # on the certification part, and as many on the tuning part
    churn: float
    accuracy: float = 0.8

    @property
    def retentions(self) -> Law:
        return SHAPES[self.shape](THRESHOLDS)

    def draw(self, number: int, rng: np.random.Generator) -> Counts:
        """Paired counts (number, thresholds, 4). What one threshold loses is lost by all that lose more: the
        outcomes of one part hang together, as in life."""
        flips = self.churn / 2 * np.minimum(2 * THRESHOLDS, 1)
        lost, lost_rank = np.unique((1 - self.retentions) * self.accuracy + flips, return_inverse=True)
        gained, gained_rank = np.unique(flips, return_inverse=True)
        cells = [*np.diff(lost, prepend=0), *np.diff(gained, prepend=0), self.accuracy - lost[-1]]
        drawn = rng.multinomial(self.problems, [*cells, 1 - sum(cells)], size=number)
        all_lost, all_gained = drawn[:, : len(lost)], drawn[:, len(lost) : -2]
        right = all_lost.sum(1, keepdims=True) + drawn[:, [-2]]
        lost_by, gained_by = all_lost.cumsum(1)[:, lost_rank], all_gained.cumsum(1)[:, gained_rank]
        return np.stack([right - lost_by, lost_by, gained_by, self.problems - right - gained_by], axis=-1)

    def false(self, passed: NDArray[np.bool_], order: Counts) -> NDArray[np.bool_]:
        """Of which calibrations anything passed that does not keep what was wanted: (number,)."""
        return np.asarray((passed & (self.retentions[order] <= WANTED + 1e-12)).any(1))


WORLDS = [World(*cell) for cell in product(SHAPES, (100, 250, 500, 1319), (0.0, 0.03, 0.1))]


def freeze(tuning: Counts, delta: float) -> Counts:
    """Thresholds' indices (number, 4), safest first: for each chance the loosest that passes with it, if the
    tuning part shows the truth. A stand-in for the product's, which sums the chance exactly."""
    both, lost, gained, _ = np.moveaxis(tuning, -1, 0)
    n = tuning.sum(-1)
    mean = (both + gained - WANTED * (both + lost)) / n
    square = (both * (1 - WANTED) ** 2 + lost * WANTED**2 + gained + 0.5) / n
    chance = norm.cdf(mean / np.sqrt(square / n) - norm.isf(delta))
    loosest = [len(THRESHOLDS) - 1 - (chance >= c)[:, ::-1].argmax(1) for c in _CHANCES]
    able = [(chance >= c).any(1) for c in _CHANCES]
    return np.sort(np.where(able, loosest, 0), 0).T


def fixed_sequence(counts: Counts, order: Counts, delta: float) -> NDArray[np.bool_]:
    """Which of the sequence pass (number, frozen): `certify_sequence`, of many calibrations at once."""
    chosen = np.take_along_axis(counts, order[..., None], 1)
    both, lost, gained, wrong = np.moveaxis(chosen, -1, 0)
    p = p_values(both, lost, gained, wrong, WANTED)
    return np.asarray((p <= delta).cumprod(1), np.bool_)


def naive(counts: Counts) -> tuple[NDArray[np.bool_], Counts]:
    """The loosest threshold that looks good enough on the same problems: (number, 1), passed and which."""
    good = counts[..., 0] + counts[..., 2] >= WANTED * (counts[..., 0] + counts[..., 1])
    return np.asarray(good.any(1, keepdims=True)), len(THRESHOLDS) - 1 - good[:, ::-1].argmax(1)[:, None]


def law(k: int, classes: list[tuple[float, float, float, float]]) -> Law:
    """Of the table of one problem: classes of (share, P(target right), P(lost | right), P(gained | wrong)), seeds
    independent within a class, so that problems differ and seeds of one agree."""
    table = np.zeros((k + 1, k + 1))
    for (share, right, lost, gained), a in product(classes, range(k + 1)):
        kept, won = binom.pmf(np.arange(a + 1), a, 1 - lost), binom.pmf(np.arange(k - a + 1), k - a, gained)
        table[a] += share * binom.pmf(a, k, right) * np.convolve(kept, won)
    return table


def retention(table: Law) -> float:
    solved = np.arange(len(table))
    return float(table.sum(0) @ solved / (table.sum(1) @ solved))
