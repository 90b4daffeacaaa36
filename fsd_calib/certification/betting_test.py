"""A test that is valid at any moment: betting against H0 problem by problem, in an order fixed beforehand.

Knows shares of seeds solved, in order. Knows nothing of when anybody looks.
"""

from __future__ import annotations

import math

import numpy as np

from fsd_calib.certification.outcomes import Floats

# Of the most that one problem can lose, how much is at stake. All stakes are played, each with an equal part of the
# wealth, so none need be known to be good: large ones win where few outcomes flip, small ones where many do.
_STAKES = (0.2, 0.4, 0.6, 0.9)
_ROUNDING = 1e-9  # of the number of problems


def p_values(target: Floats, fuzzy: Floats, wanted: float, whole: int | None = None) -> Floats:
    """P-values of H0: retention <= wanted, (...), from shares of seeds solved (..., problems), valid at any moment.

    The most wealth that bets on Z = fuzzy - wanted target made so far, inverted: under H0 the chance that it
    ever exceeds 1 / delta is at most delta (Ville). Waudby-Smith and Ramdas, JRSSB 86, 2024; the stakes are a
    mixture, so at a given moment the order matters only through earlier wealth.

    Args:
        whole: None: problems are drawn from a population. Otherwise these are the first of so many, in random
            order, and H0: retention < wanted is about those (Waudby-Smith and Ramdas, NeurIPS 2020). Where the
            rest cannot change the answer it is a fact: p = 0, or p = 1.
    """
    if whole is None:
        return _inverse(_log_wealth(fuzzy / wanted - target))
    p = _inverse(_log_wealth(_payoffs_within(target, fuzzy, wanted, whole)))
    left, solved, kept = whole - target.shape[-1], target.sum(-1), fuzzy.sum(-1)
    rounding = _ROUNDING * whole
    shown = kept >= wanted * (solved + left) - rounding  # though all others be lost
    refuted = kept + left < wanted * solved - rounding  # though all others be gained
    return np.where(shown, 0.0, np.where(refuted, 1.0, p))


def _payoffs_within(target: Floats, fuzzy: Floats, wanted: float, whole: int) -> Floats:
    """What a stake of 1 wins on each problem: (Z - m) / (wanted + m), m the mean of what is left if all sum to 0.

    H0 says that the mean of Z among those left is at most m, and Z >= -wanted, so the payoff is >= -1.
    """
    left = whole - np.arange(target.shape[-1])  # this one included
    solved, kept = (np.cumsum(x, -1) - x for x in (target, fuzzy))  # before this one
    losable = wanted * (left + solved) - kept  # left (wanted + m)
    payoff = left * fuzzy + kept - wanted * (left * target + solved)
    decided = losable <= _ROUNDING * whole  # nothing to bet on: a fact already
    return np.where(decided, 0.0, payoff / np.where(decided, 1.0, losable))


def _log_wealth(payoffs: Floats) -> Floats:
    """After each problem, of a mixture of stakes."""
    total = np.full(payoffs.shape, -np.inf)
    for stake in _STAKES:
        np.logaddexp(total, np.cumsum(np.log1p(stake * payoffs), -1), out=total)
    return total - math.log(len(_STAKES))


def _inverse(log_wealth: Floats) -> Floats:
    return np.asarray(np.exp(-np.maximum(log_wealth.max(-1), 0.0)), np.float64)
