"""Intervals of a sweep: they hold what they should about as often as they say, and agree with what is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from fsd_calib.sweeping.estimates import proportion, ratio, ratio_of_ratios

_CONFIDENCE, _RUNS, _FEWEST = 0.9, 400, 328
# Both methods are approximate: at these sizes they cover what they state but for two points at most. Of so many runs
# less than _FEWEST are covered with probability _ALARM then.
_ALARM = 3e-4


@given(right=st.integers(0, 40), more=st.integers(0, 40))
def test_a_share_of_single_answers_is_wilsons(right: int, more: int) -> None:
    answers = np.array([1.0] * right + [0.0] * more)
    if not len(answers):
        return
    found = proportion(answers, np.ones(len(answers)), len(answers), 0.95)
    known = binomtest(right, right + more).proportion_ci(0.95, method="wilson")
    assert found.value == right / (right + more)
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-9)


@pytest.mark.parametrize("groups", [8, 80])
def test_shares_of_grouped_problems_hold_as_often_as_they_say(groups: int) -> None:
    """Problems of a group are right or wrong together. False-alarm probability: _ALARM."""
    assert binom.cdf(_FEWEST - 1, _RUNS, _CONFIDENCE - 0.02) < _ALARM
    rng, held = np.random.default_rng(0), 0
    for _ in range(_RUNS):
        sizes = rng.integers(1, 6, groups).astype(float)
        found = proportion(sizes * (rng.random(groups) < 0.7), sizes, int(sizes.sum()), _CONFIDENCE)
        held += found.low <= 0.7 <= found.high
    assert held >= _FEWEST


def test_units_that_happen_to_agree_do_not_make_an_interval_vanish() -> None:
    found = proportion(np.array([5, 5.01, 5]), np.array([10.0, 10, 10]), 30, 0.95)
    assert found.low < 0.3
    assert found.high > 0.7
    one = proportion(np.array([7.0]), np.array([10.0]), 10, 0.95)
    assert (one.low, one.high) == (0.0, 1.0)


def test_ratios_hold_as_often_as_they_say() -> None:
    """Tokens a round of texts whose lengths differ, and how many times as many as another rule's on the same texts.

    False-alarm probability: 2 * _ALARM.
    """
    rng, held, mean = np.random.default_rng(1), [0, 0], (20 + 199) / 2
    for _ in range(_RUNS):
        difficulty, length = rng.gamma(20, 1 / 20, 60), rng.integers(20, 200, 60)
        rounds = rng.poisson(length / 4 * difficulty) + 1.0
        fewer = rng.poisson(length / 6 * difficulty) + 1.0
        alone, beside = ratio(length, rounds, _CONFIDENCE), ratio_of_ratios(length, fewer, length, rounds, _CONFIDENCE)
        held[0] += alone.low <= mean / (mean / 4 + 1) <= alone.high
        held[1] += beside.low <= (mean / 4 + 1) / (mean / 6 + 1) <= beside.high
    assert min(held) >= _FEWEST


def test_one_text_has_no_interval() -> None:
    found = ratio(np.array([10.0]), np.array([4.0]), 0.9)
    assert found.value == 2.5
    assert not found.bounded
