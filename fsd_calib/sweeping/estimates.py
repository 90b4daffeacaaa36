"""Intervals of shares and of ratios over problems, which are drawn independently of each other."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm, t

from fsd_calib.measuring.speed import Interval


def proportion(right: np.ndarray, sizes: np.ndarray, answers: int, confidence: float) -> Interval:
    """Returns a share of right answers with Wilson's interval (Journal of the American Statistical Association, 1927).

    With several seeds or grouped problems, the number of independent answers is that whose variance is the units', and
    the quantile is Student's, as few units know their variance badly.

    Args:
        right: (units,): right answers of each unit, of means over seeds.
        sizes: (units,): its problems.
        answers: All that were graded, of every seed.
    """
    share, units = float(right.sum() / sizes.sum()), len(sizes)
    independent, z = float(answers), float(norm.ppf((1 + confidence) / 2))
    if units < answers:
        if units < 2:
            return Interval(share, 0.0, 1.0)
        residual = right - share * sizes
        variance = float(residual @ residual / sizes.sum() ** 2) * units / (units - 1)
        if 0 < share < 1:
            independent = min(share * (1 - share) / variance, independent) if variance else independent
        else:  # nothing shows how alike the answers of a unit are
            independent = float(units)
        z = float(t.ppf((1 + confidence) / 2, units - 1))
    middle = (share + z**2 / (2 * independent)) / (1 + z**2 / independent)
    half = z * math.sqrt(share * (1 - share) / independent + (z / (2 * independent)) ** 2) / (1 + z**2 / independent)
    return Interval(share, max(middle - half, 0.0), min(middle + half, 1.0))


def ratio(above: np.ndarray, below: np.ndarray, confidence: float) -> Interval:
    """Returns a ratio of sums with its interval by the delta method, on the scale of logarithms.

    Args:
        above, below: (units,).
    """
    return _around(float(above.sum() / below.sum()), _influence(above, below), confidence)


def ratio_of_ratios(
    above: np.ndarray, below: np.ndarray, other_above: np.ndarray, other_below: np.ndarray, confidence: float
) -> Interval:
    """Returns one ratio of sums over another one on the same units, likewise."""
    value = float(above.sum() / below.sum() / (other_above.sum() / other_below.sum()))
    return _around(value, _influence(above, below) - _influence(other_above, other_below), confidence)


def _influence(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """How much each unit moves the logarithm of the ratio."""
    found: np.ndarray = above / above.sum() - below / below.sum()
    return found


def _around(value: float, influence: np.ndarray, confidence: float) -> Interval:
    units = len(influence)
    if units < 2:
        return Interval(value, -math.inf, math.inf)
    error = math.sqrt(float(influence @ influence) * units / (units - 1))
    half = float(t.ppf((1 + confidence) / 2, units - 1)) * error
    return Interval(value, value * math.exp(-half), value * math.exp(half))
