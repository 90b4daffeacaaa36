"""First attempts: retention by threshold in many simulated calibrations at once, each with a frozen sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from fsd_calib.certification.looks import Looks
from fsd_calib.certification.score_test import p_values
from fsd_calib.options.goal import Goal
from lib.validity.shares import Share, line, own_level, summarise
from lib.validity.sizes import Counts, Law

Bools = NDArray[np.bool_]

WANTED = 0.98
LOOKS = Goal(min_acc=WANTED).looks
THRESHOLDS = (np.arange(20) + 1) / 20  # as shares of drafted tokens accepted: the looser, the faster
_CHANCES = (0.95, 0.8, 0.5, 0.2)  # probabilities of passing, for which thresholds are frozen

Shape = Callable[[Law], Law]
SHAPES: dict[str, Shape] = {  # retention by threshold
    "flat": lambda u: np.full_like(u, WANTED),  # every certificate is false
    "linear": lambda u: 1 - 0.05 * u,
    "cliff": lambda u: np.where(u < 0.5, 1.0, 0.97),
    "s": lambda u: 1 - 0.06 / (1 + np.exp(-12 * (u - 0.5))),
    "bump": lambda u: 0.99 - 0.03 * np.sin(2 * np.pi * u) ** 2,  # falls below, recovers, falls again
    "leak": lambda u: 1 - 0.022 * u,  # is too low only at the very end
    "edge": lambda u: np.where(u < 0.5, 1.0, WANTED),  # just too low in the looser half
    "kept": np.ones_like,  # no certificate is false
}


@dataclass(frozen=True)
class World:
    """A population of problems whose outcomes depend on the threshold.

    Args:
        shape: of retention by threshold, a key of `SHAPES`.
        problems: in the tuning part, and in the certification part.
        churn: share of problems that flip at the loosest threshold, half lost and half gained, in addition to the
            losses that its retention implies.
        accuracy: of the target.
    """

    shape: str
    problems: int
    churn: float
    accuracy: float = 0.8

    @property
    def retentions(self) -> Law:
        return SHAPES[self.shape](THRESHOLDS)

    @property
    def laws(self) -> Law:
        """Probabilities of both right, lost, gained and both wrong, (thresholds, 4)."""
        gained = self.churn / 2 * np.minimum(2 * THRESHOLDS, 1)
        lost = (1 - self.retentions) * self.accuracy + gained
        return np.stack([self.accuracy - lost, lost, gained, 1 - self.accuracy - gained], 1)

    def draw(self, number: int, rng: np.random.Generator) -> Counts:
        """Draws paired counts (number, thresholds, 4).

        A problem that one threshold loses is lost by all thresholds with more losses: the outcomes of one part are
        dependent, as real ones are.
        """
        lost, lost_rank = np.unique(self.laws[:, 1], return_inverse=True)
        gained, gained_rank = np.unique(self.laws[:, 2], return_inverse=True)
        cells = [*np.diff(lost, prepend=0), *np.diff(gained, prepend=0), self.accuracy - lost[-1]]
        drawn = rng.multinomial(self.problems, [*cells, 1 - sum(cells)], size=number)
        all_lost, all_gained = drawn[:, : len(lost)], drawn[:, len(lost) : -2]
        right = all_lost.sum(1, keepdims=True) + drawn[:, [-2]]
        lost_by, gained_by = all_lost.cumsum(1)[:, lost_rank], all_gained.cumsum(1)[:, gained_rank]
        return np.stack([right - lost_by, lost_by, gained_by, self.problems - right - gained_by], axis=-1)

    def false(self, passed: Bools, order: Counts) -> Bools:
        """Returns for each calibration whether any threshold passed whose retention is too low, (number,)."""
        return np.asarray((passed & (self.retentions[order] <= WANTED + 1e-12)).any(1))


def freeze(tuning: Counts, delta: float) -> Counts:
    """Returns the indices of frozen thresholds (number, 4), safest first.

    For each of four probabilities of passing it is the loosest threshold that has it, if the tuning part shows the
    truth. This stands in for `fsd_calib`'s own freezing, which computes the probability exactly.
    """
    both, lost, gained, _ = np.moveaxis(tuning, -1, 0)
    n = tuning.sum(-1)
    mean = (both + gained - WANTED * (both + lost)) / n
    square = (both * (1 - WANTED) ** 2 + lost * WANTED**2 + gained + 0.5) / n
    chance = norm.cdf(mean / np.sqrt(square / n) - norm.isf(delta))
    loosest = [len(THRESHOLDS) - 1 - (chance >= c)[:, ::-1].argmax(1) for c in _CHANCES]
    able = [(chance >= c).any(1) for c in _CHANCES]
    return np.sort(np.where(able, loosest, 0), 0).T


def p_of(counts: Counts) -> Law:
    """Returns the p-values of counts (..., 4), of the hypothesis that retention is below what is wanted."""
    both, lost, gained, wrong = np.moveaxis(counts, -1, 0)
    return p_values(both, lost, gained, wrong, WANTED)


def by_looks(looks: Looks, draw: Callable[[int], Counts]) -> Counts:
    """Returns counts of the problems between looks, (looks, ..., 4). draw: counts of so many problems, (..., 4)."""
    return np.stack([draw(more) for more in np.diff(looks.problems, prepend=0).tolist()])


def passes(between: Counts, looks: Looks, delta: float) -> Bools:
    """Returns what passes at any look of a test of size `delta`, (...), by counts between them, (looks, ..., 4)."""
    levels = np.array([looks.level(problems, delta) for problems in looks.problems])
    return np.asarray((np.moveaxis(p_of(between.cumsum(0)), 0, -1) <= levels).any(-1))


def in_sequence(p: Law, delta: float | Law) -> Bools:
    """Returns which candidates pass the fixed-sequence test, (number, frozen), in many calibrations at once."""
    return np.asarray((p <= delta).cumprod(1), np.bool_)


def sequences(problems: Sequence[int], churns: Sequence[float], runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """Simulates first attempts for each shape of retention by threshold, which look as often as the command does.

    The outcomes of the frozen thresholds are nested, as those of one draft are, or independent of each other, as those
    of several drafts may be.
    """
    shares = list[Share]()
    for shape, number, churn in product(SHAPES, problems, churns):
        world = World(shape, number, churn)
        order = freeze(world.draw(runs, rng), own_level(1))
        for way, draws in (("nested", 1), ("independent", order.shape[1])):
            passed = _tested(world, order, draws, rng)
            false = world.false(passed.cumprod(1).astype(bool), order)
            shares.append(Share(line(shape, number, churn), way, float(false.mean())))
    columns = "shape | problems | churn | outcomes, then the share with a false certificate"
    return summarise(shares, columns, own_level(1), runs)


def _tested(world: World, order: Counts, draws: int, rng: np.random.Generator) -> Bools:
    """Returns which frozen thresholds pass, (runs, frozen): the i-th by the i-th draw, or all by the same."""
    looks, passed = Looks.evenly(world.problems, LOOKS), list[Bools]()
    drawn = [
        by_looks(looks, lambda problems: replace(world, problems=problems).draw(len(order), rng)) for _ in range(draws)
    ]
    for place in range(order.shape[1]):
        chosen = np.take_along_axis(drawn[place % draws], order[None, :, [place], None], 2)[:, :, 0]
        passed.append(passes(chosen, looks, own_level(1)))
    return np.stack(passed, 1)
