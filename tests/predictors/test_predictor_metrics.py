"""Metrics of forecasts, and hyperparameter tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_common.errors import UsageError
from fsd_predictors.models.base import AcceptanceModel, Parts
from fsd_predictors.models.registry import MODELS
from fsd_predictors.training.evaluation import BINS, auc, bins, calibration_error, falls
from fsd_predictors.training.tuning import tune, validation_rows
from support.traces.acceptance_rows import SHARE, Array, rows

forecasts = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), st.booleans()), min_size=1, max_size=60
)


@given(forecasts)
def test_auc_is_the_share_of_pairs_in_order(outcomes: list[tuple[float, bool]]) -> None:
    forecast, accepted = np.array([one for one, _ in outcomes]), np.array([one for _, one in outcomes])
    ups, downs = forecast[accepted], forecast[~accepted]
    if not len(ups) or not len(downs):
        with pytest.raises(UsageError, match=r"all .* rows are of one class"):
            auc(accepted, forecast)
        return
    pairs = ups[:, None] - downs
    assert auc(accepted, forecast) == pytest.approx(((pairs > 0) + (pairs == 0) / 2).mean())


class TestCalibrationError:
    def test_by_hand(self) -> None:
        """Two forecasts, .2 of 30 rows, a third of which came true, and .9 of 15, all of which did."""
        forecast = np.repeat([0.2, 0.9], [30, 15])
        accepted = np.arange(45) % 3 == 0
        accepted[30:] = True
        assert calibration_error(accepted, forecast) == pytest.approx(30 / 45 * (1 / 3 - 0.2) + 15 / 45 * 0.1)

    @given(forecasts, st.randoms(use_true_random=False))
    def test_order_does_not_matter(self, outcomes: list[tuple[float, bool]], random: object) -> None:
        shuffled = list(outcomes)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        first, second = (calibration_error(*np.array(each).T[::-1]) for each in (outcomes, shuffled))
        assert first == pytest.approx(second)

    @given(forecasts)
    def test_is_at_least_the_bias_and_at_most_1(self, outcomes: list[tuple[float, bool]]) -> None:
        forecast, accepted = np.array(outcomes, float).T
        assert abs(forecast.mean() - accepted.mean()) - 1e-12 <= calibration_error(accepted, forecast) <= 1

    def test_true_probabilities_have_only_sampling_error(self) -> None:
        """.8·sqrt(15·.167/30,000) = .007, ± .0013: a false alarm in 1e9 runs."""
        rng = np.random.default_rng(0)
        chance = rng.random(30_000)
        assert calibration_error(rng.random(30_000) < chance, chance) < 0.015

    def test_sees_errors_that_cancel(self) -> None:
        """Overconfident on both sides, right on average: the true error is .25, 20 standard errors above .2."""
        rng = np.random.default_rng(0)
        chance = rng.random(30_000)
        assert calibration_error(rng.random(30_000) < chance, (chance > 0.5).astype(float)) > 0.2


class TestBins:
    @given(st.integers(1, 40), st.integers(0, 9))
    def test_bins_hold_equally_many_rows(self, rows_a_bin: int, seed: int) -> None:
        forecast = np.random.default_rng(seed).random(rows_a_bin * BINS)
        said, came = bins(forecast > 0.5, forecast)
        assert said == pytest.approx(np.sort(forecast).reshape(BINS, -1).mean(1))
        assert came == pytest.approx((np.sort(forecast) > 0.5).reshape(BINS, -1).mean(1))

    @given(st.integers(1, BINS))
    def test_bins_of_few_rows_are_the_rows(self, count: int) -> None:
        forecast = np.arange(count) / count
        assert bins(np.ones(count), forecast)[0] == pytest.approx(forecast)

    def test_rows_of_one_forecast_stay_together(self) -> None:
        said, came = bins(np.arange(1000) < 300, np.full(1000, 0.4))
        assert (said.tolist(), came.tolist()) == ([pytest.approx(0.4)], [0.3])


class Falling(AcceptanceModel):
    """Falls slightly in the share where column 0 is positive."""

    kind = "falling"

    def __init__(self, share: int = 0, fall: float = 0.01) -> None:
        self.share = share
        self.fall = fall

    def _fit(self, rows: Array, accepted: Array) -> None: ...

    def logits(self, rows: Array) -> Array:
        logits: Array = rows[:, self.share] * np.where(rows[:, 0] > 0, -self.fall, 1)
        return logits

    def logit(self, values: Sequence[float]) -> float:
        return float(self.logits(np.array([values]))[0])

    def parts(self) -> Parts:
        return Parts({})

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        return cls()


def test_falls_counts_rows() -> None:
    values = np.random.default_rng(0).normal(size=(500, 4))
    model = Falling(share=SHARE).fit(values, values[:, 1] > 0)
    before = values.copy()
    assert falls(model, values, np.array([1.0, -1.0, 0.0])) == (values[:, 0] > 0).sum()
    assert falls(model, values[values[:, 0] < 0], np.linspace(-3, 3, 9)) == 0
    assert np.array_equal(values, before)


class TestTuning:
    @given(st.lists(st.integers(0, 9), min_size=2, max_size=60), st.integers(0, 5))
    def test_no_problem_is_in_training_and_validation(self, groups: list[int], seed: int) -> None:
        if len(set(groups)) < 2:
            with pytest.raises(UsageError, match="tuning needs at least 2"):
                validation_rows(np.array(groups), seed)
            return
        judges = validation_rows(np.array(groups), seed)
        inside, outside = (set(np.array(groups)[chosen].tolist()) for chosen in (judges, ~judges))
        assert inside
        assert outside
        assert not inside & outside

    @pytest.mark.parametrize("kind", ["logistic", "boosted"])
    def test_returns_the_same_settings_again(self, kind: str) -> None:
        values, y, _ = rows(2000, 0)
        first, second = (tune(kind, values, y, np.arange(2000) // 20, 3, seed=1) for _ in range(2))
        assert first == second
        assert MODELS[kind](**first).get_params().items() >= first.items()
        assert len(first) >= 2

    def test_tries_the_defaults_first(self) -> None:
        values, y, _ = rows(1000, 0)
        found = tune("boosted", values, y, np.arange(1000) // 20, 1, seed=0)
        assert MODELS["boosted"]().get_params().items() >= found.items()

    def test_avoids_overfitting(self) -> None:
        """Random labels: the less a model follows them, the better."""
        rng = np.random.default_rng(0)
        values, y = rng.normal(size=(1500, 6)), rng.random(1500) < 0.5
        found = tune("boosted", values, y, np.arange(1500) // 10, 8, seed=0)
        assert found["learning_rate"] < 0.2  # the default, which is tried first

    def test_no_trials_are_the_defaults(self) -> None:
        values, y, _ = rows(100, 0)
        assert tune("head", values, y, np.arange(100), 0, seed=0) == {}

    def test_refuses_an_unknown_kind(self) -> None:
        values, y, _ = rows(100, 0)
        with pytest.raises(UsageError, match="kind is 'tree'; it must be one of logistic, boosted, head"):
            tune("tree", values, y, np.arange(100), 1, seed=0)
