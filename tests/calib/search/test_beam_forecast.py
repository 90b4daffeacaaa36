"""Forecasts for beams."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.engines.beams import Layers
from fsd_calib.search.beam_forecast import BeamForecast
from fsd_calib.search.space import logit
from fsd_collectors.replay.cost import CostModel
from fsd_decoding.profile.setting import Setting

COSTS = CostModel(draft_step=0.002, verify=0.01, position=0.0)
ARM = Setting("fsd-coupled", "js", 3, width=4)
REJECTED = st.lists(st.tuples(st.integers(0, 7), st.floats(0, 0.7) | st.just(math.inf)), max_size=60)


def layers(rejected: list[tuple[int, float]], rounds: int = 100) -> Layers:
    places, scores = (np.array([each[i] for each in rejected]) for i in range(2))
    return Layers(400, rounds, places.astype(np.int64), scores.astype(np.float64))


def test_layers_a_round_by_hand() -> None:
    """Of 100 rounds 50 end with the first layer, and 25 of the others with the second; T keeps two in three of them."""
    found = layers([(0, 0.1)] * 50 + [(1, 0.3)] * 25)
    assert found.per_round(1, None) == pytest.approx(1 + 0.5)
    assert found.per_round(3, None) == pytest.approx(1 + 0.5 + 0.25 + 0.25)
    assert found.per_round(2, 0.2) == pytest.approx(1 + 5 / 6 + 5 / 6 * 5 / 6)
    assert found.per_round(2, 0.3) == 3


@given(REJECTED, st.integers(1, 8), st.floats(0, 0.7), st.floats(0, 0.7))
def test_more_is_kept_at_a_larger_t_and_more_drafted_is_no_less(
    rejected: list[tuple[int, float]], depth: int, one: float, other: float
) -> None:
    found = layers(rejected)
    strict, loose = found.per_round(depth, min(one, other)), found.per_round(depth, max(one, other))
    assert 1 <= found.per_round(depth, None) <= strict <= loose <= depth + 1
    assert found.per_round(depth + 1, one) >= found.per_round(depth, one)


@given(REJECTED)
def test_thresholds_are_finite_and_rise_with_the_share_and_so_do_speeds(rejected: list[tuple[int, float]]) -> None:
    forecast = BeamForecast({"js": layers(rejected)}, COSTS)
    shares = np.linspace(forecast.lowest, forecast.highest, 9)
    thresholds = [forecast.threshold(ARM, float(share)) for share in shares]
    assert np.isfinite(thresholds).all()
    assert (np.diff(thresholds) >= 0).all()
    speeds = [forecast.tokens_per_second(ARM.at(threshold)) for threshold in thresholds]
    assert (np.diff(speeds) >= 0).all()


def test_a_share_that_no_finite_t_keeps_is_not_reached() -> None:
    forecast = BeamForecast({"js": layers([(0, 0.1), (0, math.inf)] * 5)}, COSTS)
    assert forecast.reaches(ARM, logit(0.4))
    assert not forecast.reaches(ARM, logit(0.9))


def test_lossless_layers_are_counted_as_they_were() -> None:
    forecast = BeamForecast({"js": layers([(0, 0.1)] * 50)}, COSTS)
    counts = forecast.counts(ARM.under("coupled"))
    assert counts.tokens == 400
    assert counts.rounds == pytest.approx(400 / (1 + 3 * 0.5))
    assert counts.drafted == pytest.approx(3 * counts.rounds)
