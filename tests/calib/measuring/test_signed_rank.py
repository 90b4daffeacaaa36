"""The Hodges–Lehmann centre and its interval, against scipy's signed-rank test and by properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from fsd_calib.measuring.speed import centre, fewest

VALUES = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=1, max_size=30)


@given(VALUES, st.floats(0.001, 0.5), st.floats(-10, 10).map(lambda x: round(x, 3)))
def test_it_moves_and_turns_with_the_values(values: list[float], miss: float, shift: float) -> None:
    value, low, high = centre(np.array(values), miss)
    assert min(values) - 1e-9 <= value <= max(values) + 1e-9
    assert low <= value <= high
    assert centre(np.array(values) + shift, miss) == pytest.approx((value + shift, low + shift, high + shift))
    assert centre(-np.array(values), miss) == pytest.approx((-value, -high, -low))


@pytest.mark.parametrize("count", [6, 8, 13, 40])
@pytest.mark.parametrize("miss", [0.01, 0.05, 0.2])
def test_the_interval_holds_what_the_signed_rank_test_does_not_reject(count: int, miss: float) -> None:
    values = np.random.default_rng(count).standard_normal(count)
    _, low, high = centre(values, miss)
    if not np.isfinite(low):
        assert 2 * 0.5**count > miss
        return
    for end, inwards in ((low, 1e-9), (high, -1e-9)):
        assert wilcoxon(values - end - inwards, method="exact").pvalue > miss
        assert wilcoxon(values - end + inwards, method="exact").pvalue <= miss


@given(st.floats(1e-6, 0.5))
def test_the_fewest_values_are_those_that_give_ends(miss: float) -> None:
    least = fewest(miss)
    assert np.isfinite(centre(np.zeros(least), miss)).all()
    assert not np.isfinite(centre(np.zeros(least - 1), miss)[1:]).any()


def test_few_values_have_no_interval_and_an_outlier_moves_nothing() -> None:
    assert centre(np.zeros(7), 0.01)[1:] == (-np.inf, np.inf)
    assert centre(np.zeros(8), 0.01)[1:] == (0.0, 0.0)
    values = np.append(np.zeros(30), 1e9)
    assert centre(values, 0.01) == (0.0, 0.0, 0.0)
