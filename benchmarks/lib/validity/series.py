"""The power of series of levels: what a target that keeps more than is wanted gets certified, and when."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsd_calib.certification import betting_test
from fsd_calib.certification.power import cells
from lib.validity.shares import CONFIDENCE, own_level
from lib.validity.sizes import Floats
from lib.validity.worlds import WANTED, p_of

_ACCURACY, _CHURN = 0.8, 0.04
_MONTHS, _TIMES = 6, (1, 2, 4)  # fresh files; and times the first problems, which are among the later ones


def _evenly(number: int) -> float:
    """As the levels were before: 6 / (pi k)^2 of the budget."""
    return (1 - CONFIDENCE) * 6 / (math.pi * number) ** 2


def _invested(number: int) -> float:
    """Alpha-investing (Foster and Stine, JRSSB 70, 2008) with half of the wealth staked on each test that follows
    none that passed."""
    stake = (1 - CONFIDENCE) * CONFIDENCE * 0.5**number
    return stake / (1 + stake)


SERIES: dict[str, Callable[[int], float]] = {
    "nine tenths first": own_level,
    "6 / (pi k)^2": _evenly,
    "alpha-investing, half of the wealth": _invested,
}
_E_LOND = "e-LOND (betting, the same series)"


def power(problems: Sequence[int], retentions: Sequence[float], runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """Simulates how often a first attempt passes, one of the first months' files, and one of ever more problems.

    e-LOND (Xu and Ramdas, AISTATS 2024) needs e-values: those of the betting test, whose largest wealth so far is taken
    here, which favours it. Until something passes, its levels are any series that sums to the budget.
    """
    rows = []
    for number, retention in ((n, r) for n in problems for r in retentions):
        law = cells(_ACCURACY, _CHURN, retention)
        months = rng.choice(4, size=(runs, _MONTHS, number), p=law).astype(np.int8)
        files = [months[:, month] for month in range(_MONTHS)]
        grown = [months[:, :times].reshape(runs, -1) for times in _TIMES]
        scores, bets = ([[p(kinds) for kinds in tried] for tried in (files, grown)] for p in (_score, _bet))
        for name, series, (fresh, more) in (
            *((name, series, scores) for name, series in SERIES.items()), (_E_LOND, own_level, bets),
        ):  # fmt: skip
            passed, later = _passed(fresh, series), _passed(more, series)
            rows.append({
                "problems": number, "retention": retention, "series": name, "first": float(passed[0].mean()),
                "within 3 months": float(passed[2].mean()), "within 6 months": float(passed[-1].mean()),
                "with twice the problems": float(later[1].mean()), "with four times": float(later[2].mean()),
            })  # fmt: skip
    return {"runs": runs, "wanted": WANTED, "accuracy": _ACCURACY, "churn": _CHURN, "rows": rows}


def _score(kinds: NDArray[Any]) -> Floats:
    return p_of(np.stack([(kinds == kind).sum(1) for kind in range(4)], 1))


def _bet(kinds: NDArray[Any]) -> Floats:
    target, fuzzy = (np.isin(kinds, right).astype(np.float64) for right in ((0, 1), (0, 2)))
    return betting_test.p_values(target, fuzzy, WANTED)


def _passed(p: Sequence[Floats], series: Callable[[int], float]) -> NDArray[Any]:
    """Returns whether one has passed up to each attempt, (attempts, runs)."""
    each = [p_values <= series(number) for number, p_values in enumerate(p, 1)]
    return np.logical_or.accumulate(each)
