"""The sequence that is put to the test: which settings, and in which order. Knows prospects, and simulates the test.

Settings of all arms may stand in it. Each is faster than the one before, and none has a better chance of passing than
the one before, so that a test too many seldom costs what came before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fsd_calib.searching.bar import Floats
from fsd_calib.searching.prospects import Prospects

_DRAWS = 4_000
_MOST = 6  # settings
_WORTH = 0.003  # of the speed expected: what one more setting, which must be decoded, has to add
_EVEN = 0.5


def sequence(prospects: Prospects) -> list[int]:
    """Indices of settings: the sequence whose certified speed is expected to be greatest, built one by one."""
    passed = passes(prospects)
    speeds, chances = prospects.settings.speeds, passed.mean(0)
    chosen: list[int] = []
    best = prospects.lossless
    while len(chosen) < _MOST:
        longer = [_inserted(chosen, i, speeds, chances) for i in range(len(speeds)) if i not in chosen]
        values = [(expected_speed(s, passed, speeds, prospects.lossless), s) for s in longer if s is not None]
        if not values or max(values)[0] <= best * (1 + _WORTH):
            break
        best, chosen = max(values)
    return chosen


def passes(prospects: Prospects) -> NDArray[np.bool_]:
    """(draws, settings): whether each passes; truth and luck are drawn together for all of them."""
    believed, luck = prospects.covariances()
    random = np.random.default_rng(0)  # the same settings, the same sequence
    shown = random.multivariate_normal(prospects.believed.mean, believed + luck, _DRAWS, "ignore", method="eigh")
    return np.asarray(shown >= prospects.needed)


def _inserted(chosen: Sequence[int], new: int, speeds: Floats, chances: Floats) -> list[int] | None:
    """In order of speed; None: it would not be an order of chances too, or more than the last is less than even."""
    longer = sorted([*chosen, new], key=lambda i: speeds[i])
    falling = all(chances[a] >= chances[b] and speeds[a] < speeds[b] for a, b in pairwise(longer))
    return longer if falling and all(chances[i] >= _EVEN for i in longer[:-1]) else None


def expected_speed(chosen: Sequence[int], passed: NDArray[np.bool_], speeds: Floats, lossless: float) -> float:
    """Tokens/s certified, on average over draws."""
    reached = np.cumprod(passed[:, chosen], axis=1).sum(1)  # how many pass before one fails
    return float(np.array([lossless, *speeds[chosen]])[reached].mean())
