"""A test of retention that is valid at any time: betting against H0 problem by problem, in a fixed order."""

from __future__ import annotations

import math

import numpy as np

from fsd_calib.certification.outcomes import Floats, Paired

# Stakes, as shares of the largest loss that one problem can cause. All are played, each with an equal part of the
# wealth, since the best is not known beforehand: a large one where few outcomes flip, a small one where many do.
_STAKES = (0.2, 0.4, 0.6, 0.9)
_ROUNDING = 1e-9  # of the number of problems


def p_value(paired: Paired, wanted: float, whole: int | None = None) -> float:
    """Returns the p-value of outcomes, see `p_values`; the problem or group is the unit.

    Of `whole` problems that come in groups these are no random ones, since problems of a group are side by side: p is 0
    or 1 where the remaining ones cannot change the result, and else 1.
    """
    if whole is None or paired.groups is None:
        return float(p_values(*paired.bounded_units, wanted, whole))
    return float(_settled(paired.target.mean(1), paired.fuzzy.mean(1), wanted, whole, np.float64(1.0)))


def p_values(target: Floats, fuzzy: Floats, wanted: float, whole: int | None = None) -> Floats:
    """Returns p-values of H0: retention <= wanted, (...), from shares of seeds solved, (..., problems); valid at any
    time.

    The p-value is the inverse of the largest wealth so far of bets on Z = fuzzy - wanted * target: under H0 the
    probability that the wealth ever exceeds 1 / delta is at most delta (Ville's inequality). See Waudby-Smith and
    Ramdas, JRSSB 86, 2024. The bets are a mixture of constant stakes, so at a given time the order of problems matters
    only through earlier wealth.

    Args:
        whole: None: the problems are drawn from a population. Otherwise they are the first of `whole` problems in
            random order, and H0: retention < wanted is about those (Waudby-Smith and Ramdas, NeurIPS 2020). Where the
            remaining problems cannot change the result, p is 0 or 1.
    """
    if whole is None:
        return _p_values_of(_log_wealth(fuzzy / wanted - target))
    p = _p_values_of(_log_wealth(_payoffs_within(target, fuzzy, wanted, whole)))
    return _settled(target, fuzzy, wanted, whole, p)


def _settled(target: Floats, fuzzy: Floats, wanted: float, whole: int, p: Floats | np.float64) -> Floats:
    """Returns `p`, or 0 or 1 where the remaining problems cannot change the result."""
    remaining, solved, fuzzy_solved = whole - target.shape[-1], target.sum(-1), fuzzy.sum(-1)
    rounding = _ROUNDING * whole
    certain = fuzzy_solved >= wanted * (solved + remaining) - rounding  # even if all remaining are lost
    refuted = fuzzy_solved + remaining < wanted * solved - rounding  # even if all remaining are gained
    return np.where(certain, 0.0, np.where(refuted, 1.0, p))


def _payoffs_within(target: Floats, fuzzy: Floats, wanted: float, whole: int) -> Floats:
    """Returns the payoff of a stake of 1 on each problem: (Z - m) / (wanted + m).

    Here m is the mean of Z over the remaining problems if Z sums to 0 over all. Under H0 their mean is at most m; and Z
    >= -wanted, so the payoff is >= -1.
    """
    remaining = whole - np.arange(target.shape[-1])  # this one included
    solved, fuzzy_solved = (np.cumsum(x, -1) - x for x in (target, fuzzy))  # before this one
    losable = wanted * (remaining + solved) - fuzzy_solved  # left (wanted + m)
    payoff = remaining * fuzzy + fuzzy_solved - wanted * (remaining * target + solved)
    decided = losable <= _ROUNDING * whole  # no uncertainty is left to bet on
    return np.where(decided, 0.0, payoff / np.where(decided, 1.0, losable))


def _log_wealth(payoffs: Floats) -> Floats:
    """Returns the log wealth of the mixture of stakes after each problem."""
    total = np.full(payoffs.shape, -np.inf)
    for stake in _STAKES:
        np.logaddexp(total, np.cumsum(np.log1p(stake * payoffs), -1), out=total)
    return total - math.log(len(_STAKES))


def _p_values_of(log_wealth: Floats) -> Floats:
    return np.asarray(np.exp(-np.maximum(log_wealth.max(-1), 0.0)), np.float64)
