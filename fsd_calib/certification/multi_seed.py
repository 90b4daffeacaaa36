"""The test of retention with several seeds per problem: the problem is the unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsd_calib.certification import betting_test
from fsd_calib.certification.outcomes import Counts, Floats, Paired
from fsd_calib.certification.score_test import tail

FEW = 5  # flipped problems; with fewer, the variance of a problem's mean is not known well enough
_HALVINGS = 50  # of an interval of length 1: near the resolution of a float


def p_value(paired: Paired, wanted: float) -> float:
    """Returns the one-sided p-value of H0: retention <= wanted.

    It is `fitted_p_values`; where fewer than 5 problems flipped, the betting test in the problems' order, which is
    valid for any number of them. Where one test replaces the other, p is not always monotone: below about .001 a fifth
    problem that flips for the better can raise it.
    """
    table = paired.table
    if paired.problems - np.trace(table) < FEW:
        return float(betting_test.p_values(paired.target.mean(1), paired.fuzzy.mean(1), wanted))
    return float(fitted_p_values(table, wanted))


def fitted_p_values(tables: Counts, wanted: float) -> Floats:
    """Returns one-sided p-values of H0: retention <= wanted, for tables (..., k + 1, k + 1) of k seeds, as
    `Paired.table`.

    Z is a problem's mean of B - wanted * A. The law of (a, b) with E[Z] = 0 that fits best gives the variance of the
    sum. With k = 1 this is the score test of `score_test`, computed differently.

    Size, with betting on few flips: of 693 populations and laws of how 4 seeds agree (benchmarks/validity.py; 10,000
    draws each, and 80,000 anew of those above) one exceeds its level by three standard errors: .0482 at .045, where
    wanted is 1.02 and 200 problems flip with all of their seeds. Without the skewness in `tail`, 660
    problems of which few hold the gains and many the losses (accuracy .98, churn .03, wanted 1) have .0352 and .0105 at
    .0304 and .0076; with it .0300 and .0077.
    """
    k = tables.shape[-1] - 1
    solved = np.arange(k + 1) / k
    z = (solved - wanted * solved[:, None]).ravel()
    counts = tables.reshape(*tables.shape[:-2], -1)
    second, third = null_moments(counts, z)
    p = tail(counts @ z, second, third, wanted, 1 / k)
    return np.where(counts @ np.repeat(solved, k + 1) > 0, p, 1.0)


def null_moments(counts: Counts, z: Floats) -> tuple[Floats, Floats]:
    """Returns moments of the sum of Z under the law p that maximises sum n log p with sum p z = 0.

    p = n / (N (1 + lambda z)) in the observed cells, where the slope in lambda of the dual, sum n log(1 + lambda z), is
    0 (Owen, Empirical Likelihood, 2001, section 2.9). Where it is not 0 within the range of lambda, given by 1 + lambda
    z >= 0 in all cells, the missing probability is in the cell that ends the range: mostly (k, 0), all lost.
    """
    rising = (counts @ z >= 0)[..., None]
    edge = np.where(rising, z.min(), z.max())  # the cell that ends the range
    low, high = np.zeros(edge.shape), np.ones(edge.shape)  # of the range's length
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        inside = _slope(counts, z, -middle / edge) * -edge > 0
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    fitted = counts / (1 - low * z / edge)
    missing = np.maximum(counts.sum(-1) - fitted.sum(-1), 0.0)
    edge = edge[..., 0]
    return fitted @ z**2 + missing * edge**2, fitted @ z**3 + missing * edge**3


def _slope(counts: Counts, z: Floats, multiplier: Floats) -> NDArray[np.float64]:
    return np.asarray((counts * z / (1 + multiplier * z)).sum(-1, keepdims=True), np.float64)
