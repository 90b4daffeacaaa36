"""The size of the score test by sums over all outcomes. Whole calibrations are in test_validity.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm

from fsd_calib.certification.power import Cells, cells
from fsd_calib.certification.score_test import p_values
from fsd_common.errors import UsageError

DELTA = 1 - 0.95


def passes(counts: NDArray[np.int64], wanted: float) -> NDArray[np.bool_]:
    """Maps counts (..., 4), in the order of `Outcomes`, to whether they are certified: (...)."""
    n11, n10, n01, n00 = np.moveaxis(counts, -1, 0)
    return p_values(n11, n10, n01, n00, wanted) <= DELTA


def likely(problems: int, chance: float) -> NDArray[np.int64]:
    """Returns every count within six standard deviations plus six of the expectation."""
    reach = 6 * math.sqrt(problems * chance * (1 - chance)) + 6
    return np.arange(max(int(problems * chance - reach), 0), min(int(problems * chance + reach), problems) + 1)


def sizes(problems: int, truth: Cells, wanted: float, deltas: Sequence[float]) -> list[float]:
    """Returns probabilities of p <= delta, summed over all outcomes but a millionth: without simulation noise."""
    lost, gained = likely(problems, truth.lost)[:, None, None], likely(problems, truth.gained)[:, None]
    right = likely(problems, truth.both_right)
    calm = np.maximum(problems - lost - gained, 0)
    share = min(truth.both_right / (truth.both_right + truth.both_wrong), 1.0)
    chances = binom.pmf(lost, problems, truth.lost) * binom.pmf(right, calm, share)
    chances *= binom.pmf(gained, np.maximum(problems - lost, 0), min(truth.gained / (1 - truth.lost), 1.0))
    assert chances.sum() == pytest.approx(1.0, abs=1e-6)
    p = p_values(right, lost, gained, np.maximum(calm - right, 0), wanted)
    return [float(((p <= delta) * chances).sum()) for delta in deltas]


def boundary(wanted: Sequence[float], problems: Sequence[int]) -> Iterator[tuple[int, Cells, float]]:
    """Returns populations whose retention is exactly the wanted one: where a false certificate is most likely."""
    for n, accuracy, flips, ratio in product(problems, (0.3, 0.6, 0.8, 0.95), (0, 2, 6, 12, 30), wanted):
        churn = abs(1 - ratio) * accuracy + flips / n
        if flips + abs(1 - ratio) and accuracy * ratio <= 1 and churn < 0.4:
            try:
                yield n, cells(accuracy, churn, ratio), ratio
            except UsageError:  # more gains than problems the target fails
                continue


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "times"),
    [((0.9, 0.95, 0.98, 0.99, 1.0), (1.0, 1.08, 1.08, 1.08)), ((1.02, 1.1), (0.99, 0.99, 0.99, 0.99))],
)
def test_the_size_is_within_the_documented_limits(wanted: Sequence[float], times: Sequence[float]) -> None:
    deltas = (0.005, 0.01, 0.05, 0.1)
    found = np.array([sizes(*population, deltas) for population in boundary(wanted, (15, 50, 100, 200, 400, 800))])
    assert len(found) > 100
    assert (found.max(0) <= np.multiply(times, deltas)).all()
    assert (found.max(0) > 0.5 * np.array(deltas)).all()  # the test does reject


def test_the_measure_of_size_rejects_the_wald_test() -> None:
    """The textbook test on the same kind of population exceeds the level."""
    rng, truth = np.random.default_rng(2), cells(0.8, 0.018, 0.98)
    drawn = rng.multinomial(200, truth, size=20_000)
    z = (drawn[:, 2] + drawn[:, 0] - 0.98 * (drawn[:, 0] + drawn[:, 1])) / np.sqrt(
        np.maximum(drawn[:, 0] * 0.02**2 + drawn[:, 1] * 0.98**2 + drawn[:, 2], 1e-12)
    )
    assert (norm.sf(z) <= DELTA).mean() > 2 * DELTA
    assert passes(drawn, 0.98).mean() < DELTA
