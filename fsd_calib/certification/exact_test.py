"""The exact test of retention where few outcomes flipped: p-values of losses and gains."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaincinv, gammaln, pdtr

from fsd_calib.certification.outcomes import Counts, Floats

FEW = 12  # from so many flipped problems on the score test decides; chosen by size and power, see `score_test`
_RANKED_AT = 0.001  # level of the limits that outcomes are ranked by; from .0003 to .05 the power changes little here
_DOUBT = 1e-6  # chance of few flips where more are expected than H0 is searched for
_STEP = 0.05  # of the square root of the expected gains, from one null hypothesis to the next
_MISSED = 2e-3  # of p, at most, between two of them: by that p is raised
_SMALL = 50  # solved problems; up to there p has to be raised to be monotone
_UNDECIDED = 0.25  # a larger p is 1 where more than the target's accuracy is wanted
_ROUNDING = 1e-9  # of a rank


def exact_p_values(solved: Counts, lost: Counts, gained: Counts, wanted: Floats) -> Floats:
    """P-values of H0: retention <= wanted, elementwise, for fewer than `FEW` flips.

    Given how many problems either solved, losses and gains are trinomial, and H0 is 1 - P(lost) <= wanted (1 -
    P(gained)), which leaves one parameter open. p is the largest chance, under H0, of what ranks at least as high as
    what was seen. H0 is searched as far as it lets expect so few flips at all, and the chance of fewer beyond,
    1e-6, is added (Berger and Boos, JASA 89, 1994). So p is valid for any number solved, and any rank.

    The rank is the same for every `wanted`, so p rises with `wanted` (Buehler, JASA 52, 1957; Lloyd and Kabaila,
    2003). Where nothing flipped p is wanted ** solved, and what the search may miss. With better outcomes and the
    target's unchanged p falls: where up to 50 were solved it is raised to the largest p of better ones; where more
    were, that would change nothing (looked at for 175 numbers up to 3,000 and 105 values of `wanted`), but where
    more than the target's accuracy is wanted and p is above 1/4: there it is 1.

    Args:
        solved: by the target or the fuzzy rule; `lost` and `gained` are among them.
    """
    asked, where = np.unique(solved + 1j * wanted, return_inverse=True)
    tables = np.array([_table(max(int(pair.real), 1), float(pair.imag)) for pair in asked])
    return tables.reshape(-1, FEW, FEW)[where.reshape(solved.shape), lost, gained]


@lru_cache(maxsize=4096)
def _table(solved: int, wanted: float) -> Floats:
    """Monotone p by losses and gains, (FEW, FEW): the largest of outcomes with more gains, which solve more."""
    p = _suprema(solved, wanted)
    if solved <= _SMALL:
        p = p.copy()
        for more in range(1, FEW):
            better = _suprema(solved + more, wanted)[:, more:]
            p[:, : FEW - more] = np.maximum(p[:, : FEW - more], better)
    return np.where((wanted > 1) & (p > _UNDECIDED), 1.0, p)


@lru_cache(maxsize=4096)
def _suprema(solved: int, wanted: float) -> Floats:
    """The exact test's p by losses and gains, (FEW, FEW); 0 where these are too many."""
    ranked, p = _ranked(), np.zeros((FEW, FEW))
    laws = _null_laws(solved, wanted)
    if laws is None:
        p[ranked.lost[ranked.few], ranked.gained[ranked.few]] = 1.0 if wanted > 1 else _DOUBT
        return p
    q = np.exp(laws[-1]) * solved  # the most losses, gains that are expected
    seen = (ranked.lost <= _reach(q[0])) & (ranked.gained <= _reach(q[1])) | ranked.few
    seen &= ranked.lost + ranked.gained <= solved
    lost, gained, limit, few, log_ways = (part[seen] for part in ranked)
    rest = solved - lost - gained
    ways = log_ways + gammaln(solved + 1) - gammaln(rest + 1)
    chances = np.exp(laws @ np.stack([lost, gained, rest]).astype(np.float64) + ways).cumsum(1)
    last = np.searchsorted(limit, limit[few] + _ROUNDING, side="right") - 1
    largest = chances[:, last].max(0) * (1 + _MISSED) + _DOUBT
    p[lost[few], gained[few]] = np.minimum(largest, 1.0)
    return p


class _Ranked(NamedTuple):
    """Losses and gains, the best first: all that rank at least as high as any few."""

    lost: Counts
    gained: Counts
    limit: Floats
    few: NDArray[np.bool_]
    log_ways: Floats  # of the losses' and the gains' order


@lru_cache(maxsize=1)
def _ranked() -> _Ranked:
    """Ranks by an upper limit of the difference of two Poisson means, closed form (Zou and Donner, Stat. in
    Medicine 27, 2008), from the exact limits of losses and of gains."""
    lost, gained = (x.ravel() for x in np.indices((_reach(_most_flips()) + 1,) * 2))
    most, least = gammaincinv(lost + 1, 1 - _RANKED_AT), gammaincinv(np.maximum(gained, 1), _RANKED_AT) * (gained > 0)
    limit = lost - gained + np.hypot(most - lost, gained - least)
    few = lost + gained < FEW
    order = np.argsort(limit, kind="stable")
    order = order[limit[order] <= limit[few].max() + _ROUNDING]
    lost, gained = lost[order], gained[order]
    return _Ranked(lost, gained, limit[order], few[order], -gammaln(lost + 1) - gammaln(gained + 1))


def _null_laws(solved: int, wanted: float) -> Floats | None:
    """Logarithms of P(lost), P(gained), P(both right) on the edge of H0, (laws, 3), for ever more flips.

    None: even the fewest flips that H0 lets expect hardly show as few.
    """
    fewest = solved * abs(1 - wanted) / max(wanted, 1.0)
    room = min(_most_flips(), solved) - fewest
    if room <= 0:
        return None
    flips = solved - fewest  # beside those that H0 demands; from none to as many as leave room, evenly in the arc sine
    end, whole = math.asin(math.sqrt(room / flips)), math.sqrt(flips / (1 + wanted))
    more = np.sin(np.linspace(0, end, math.ceil(end * whole / _STEP) + 1)) ** 2 * whole**2 / solved
    gained, lost = more + max(wanted - 1, 0) / wanted, wanted * more + max(1 - wanted, 0)
    return np.log(np.maximum(np.stack([lost, gained, 1 - lost - gained], 1), np.finfo(np.float64).tiny))


@lru_cache(maxsize=1)
def _most_flips() -> float:
    """So many are expected where fewer than `FEW` have a chance of `_DOUBT`."""
    return float(brentq(lambda mean: pdtr(FEW - 1, mean) - _DOUBT, FEW, 10 * FEW + 100))


def _reach(mean: float) -> int:
    """A Poisson count is larger with a chance far below `_DOUBT`."""
    return math.ceil(mean + 7 * math.sqrt(mean) + 8)
