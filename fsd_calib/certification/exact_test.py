"""The exact test of retention for few flipped outcomes: p-values of losses and gains."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaincinv, gammaln, pdtr

from fsd_calib.certification.outcomes import Counts, Floats

FEW = 12  # from so many flips on, the score test decides; chosen by size and power, see `score_test`
_RANKED_AT = 0.001  # level of the limits used for ranking; the power changes little from .0003 to .05
_DOUBT = 1e-6  # probability of so few flips beyond the searched part of H0
_STEP = 0.05  # step of the search of H0, in the square root of the expected gains
_MISSED = 2e-3  # largest relative error of p between two steps; p is raised by it
_SMALL = 50  # solved problems up to which p must be raised to be monotone
_UNDECIDED = 0.25  # larger p-values become 1 where more than the target's accuracy is wanted
_ROUNDING = 1e-9  # of a rank


def exact_p_values(solved: Counts, lost: Counts, gained: Counts, wanted: Floats) -> Floats:
    """Returns p-values of H0: retention <= wanted, elementwise, for fewer than `FEW` flips.

    Given the number of problems that either solved, losses and gains are trinomial, and H0 is 1 - P(lost) <= wanted (1
    - P(gained)), which leaves one nuisance parameter. p is the largest probability, under H0, of outcomes that rank at
    least as high as the observed one. H0 is searched as far as so few flips are plausible at all, and the probability
    of fewer beyond, 1e-6, is added (Berger and Boos, JASA 89, 1994). So p is valid for any number solved, and any
    ranking.

    The ranking is the same for every `wanted`, so p rises with `wanted` (Buehler, JASA 52, 1957; Lloyd and Kabaila,
    2003). Where nothing flipped, p is wanted ** solved plus the allowances of the search. With better outcomes and the
    target's unchanged p falls: up to 50 solved problems it is raised to the largest p of better outcomes. Beyond,
    raising would change nothing (checked for 175 numbers up to 3,000 and 105 values of `wanted`), except where more
    than the target's accuracy is wanted and p is above 1/4: there p is 1.

    Args:
        solved: Number of problems that the target or the fuzzy rule solved; `lost` and `gained` are among them.
    """
    distinct, where = np.unique(solved + 1j * wanted, return_inverse=True)
    tables = np.array([_table(max(int(pair.real), 1), float(pair.imag)) for pair in distinct])
    return tables.reshape(-1, FEW, FEW)[where.reshape(solved.shape), lost, gained]


@lru_cache(maxsize=4096)
def _table(solved: int, wanted: float) -> Floats:
    """Returns monotone p by losses and gains, (FEW, FEW): the largest p among outcomes with more gains."""
    p = _suprema(solved, wanted)
    if solved <= _SMALL:
        p = p.copy()
        for more in range(1, FEW):
            better = _suprema(solved + more, wanted)[:, more:]
            p[:, : FEW - more] = np.maximum(p[:, : FEW - more], better)
    return np.where((wanted > 1) & (p > _UNDECIDED), 1.0, p)


@lru_cache(maxsize=4096)
def _suprema(solved: int, wanted: float) -> Floats:
    """Returns the exact test's p by losses and gains, (FEW, FEW); 0 where they sum to `FEW` or more."""
    ranked, p = _ranked(), np.zeros((FEW, FEW))
    laws = _null_laws(solved, wanted)
    if laws is None:
        p[ranked.lost[ranked.few], ranked.gained[ranked.few]] = 1.0 if wanted > 1 else _DOUBT
        return p
    q = np.exp(laws[-1]) * solved  # the largest expected losses and gains
    considered = (ranked.lost <= _reach(q[0])) & (ranked.gained <= _reach(q[1])) | ranked.few
    considered &= ranked.lost + ranked.gained <= solved
    lost, gained, limit, few, log_ways = (part[considered] for part in ranked)
    rest = solved - lost - gained
    ways = log_ways + gammaln(solved + 1) - gammaln(rest + 1)
    probabilities = np.exp(laws @ np.stack([lost, gained, rest]).astype(np.float64) + ways).cumsum(1)
    last = np.searchsorted(limit, limit[few] + _ROUNDING, side="right") - 1
    largest = probabilities[:, last].max(0) * (1 + _MISSED) + _DOUBT
    p[lost[few], gained[few]] = np.minimum(largest, 1.0)
    return p


class _Ranked(NamedTuple):
    """Losses and gains in order of rank, best first: all that rank at least as high as any outcome with few flips."""

    lost: Counts
    gained: Counts
    limit: Floats
    few: NDArray[np.bool_]
    log_ways: Floats  # log multinomial terms of losses and gains


@lru_cache(maxsize=1)
def _ranked() -> _Ranked:
    """Ranks outcomes by an upper limit of the difference of two Poisson means, from the exact limits of losses and
    gains.

    Closed form: Zou and Donner, Statistics in Medicine 27, 2008.
    """
    lost, gained = (x.ravel() for x in np.indices((_reach(_most_flips()) + 1,) * 2))
    most, least = gammaincinv(lost + 1, 1 - _RANKED_AT), gammaincinv(np.maximum(gained, 1), _RANKED_AT) * (gained > 0)
    limit = lost - gained + np.hypot(most - lost, gained - least)
    few = lost + gained < FEW
    order = np.argsort(limit, kind="stable")
    order = order[limit[order] <= limit[few].max() + _ROUNDING]
    lost, gained = lost[order], gained[order]
    return _Ranked(lost, gained, limit[order], few[order], -gammaln(lost + 1) - gammaln(gained + 1))


def _null_laws(solved: int, wanted: float) -> Floats | None:
    """Returns logarithms of P(lost), P(gained), P(neither), (laws, 3), on the boundary of H0, with ever more flips.

    None: even the smallest number of flips under H0 makes so few implausible.
    """
    fewest = solved * abs(1 - wanted) / max(wanted, 1.0)
    excess = min(_most_flips(), solved) - fewest
    if excess <= 0:
        return None
    flips = solved - fewest  # beyond those that H0 requires: from none to the most plausible, evenly in the arc sine
    end, whole = math.asin(math.sqrt(excess / flips)), math.sqrt(flips / (1 + wanted))
    more = np.sin(np.linspace(0, end, math.ceil(end * whole / _STEP) + 1)) ** 2 * whole**2 / solved
    gained, lost = more + max(wanted - 1, 0) / wanted, wanted * more + max(1 - wanted, 0)
    return np.log(np.maximum(np.stack([lost, gained, 1 - lost - gained], 1), np.finfo(np.float64).tiny))


@lru_cache(maxsize=1)
def _most_flips() -> float:
    """Returns the expected number of flips at which fewer than `FEW` have probability `_DOUBT`."""
    return float(brentq(lambda mean: pdtr(FEW - 1, mean) - _DOUBT, FEW, 10 * FEW + 100))


def _reach(mean: float) -> int:
    """Returns a count that a Poisson variable exceeds with a probability far below `_DOUBT`."""
    return math.ceil(mean + 7 * math.sqrt(mean) + 8)
