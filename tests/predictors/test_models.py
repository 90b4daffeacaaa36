"""Requirements of every model of acceptance, calibrated or not, and what each kind can learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import log_loss

from fsd_common.errors import UsageError
from fsd_predictors.models.base import AcceptanceModel, Parts
from fsd_predictors.models.boosted import Boosted
from fsd_predictors.models.logistic import Logistic
from fsd_predictors.models.mlp import MLP
from fsd_predictors.models.registry import MODELS, Calibrated, restore_model
from fsd_predictors.training.evaluation import auc, calibration_error, falls
from support.traces.acceptance_rows import FEATURES, SHARE, SHARES, Array, Labels, rows

HIDDEN = 8
FIT, MEND, JUDGE = 12_000, 10_000, 10_000  # rows

UNFITTED: dict[str, Callable[[], AcceptanceModel]] = {
    "logistic": lambda: Logistic(share=SHARE),
    "boosted": lambda: Boosted(share=SHARE),
    "head": lambda: MLP(share=SHARE, steps=300),
    "head on hidden states": lambda: MLP(share=SHARE, hidden=HIDDEN, steps=300),
}
MADE = [*UNFITTED, *(f"{name}, calibrated" for name in UNFITTED)]


@cache
def drawn(name: str, count: int, seed: int) -> tuple[Array, Labels, Array]:
    return rows(count, seed, HIDDEN if "hidden" in name else 0)


@cache
def fitted(name: str) -> AcceptanceModel:
    """Cached, since no test changes it."""
    if "calibrated" in name:
        return Calibrated(fitted(name.split(",")[0])).fit(*drawn(name, MEND, 1)[:2])
    return UNFITTED[name]().fit(*drawn(name, FIT, 0)[:2])


@pytest.mark.parametrize("name", MADE)
class TestConformance:
    def test_returns_two_probabilities_per_row(self, name: str) -> None:
        seen, _, _ = drawn(name, 100, 3)
        chances = fitted(name).predict_proba(seen)
        assert chances.shape == (100, 2)
        assert ((chances >= 0) & (chances <= 1)).all()
        assert np.allclose(chances.sum(1), 1, atol=1e-12, rtol=0)
        assert (fitted(name).predict(seen) == (chances[:, 1] > 0.5)).all()

    @pytest.mark.thinned(every=8)
    def test_parameters_make_the_same_model(self, name: str) -> None:
        model = clone(fitted(name))
        assert str(model.get_params()) == str(fitted(name).get_params())
        again = model.fit(*drawn(name, MEND if "calibrated" in name else FIT, 1 if "calibrated" in name else 0)[:2])
        seen, _, _ = drawn(name, 500, 3)
        assert again is model
        assert np.array_equal(model.predict_proba(seen), fitted(name).predict_proba(seen))

    def test_a_clone_is_unfitted(self, name: str) -> None:
        with pytest.raises(UsageError, match="call fit"):
            clone(fitted(name)).predict_proba(drawn(name, 5, 3)[0])

    def test_parameters_can_be_set(self, name: str) -> None:
        model = clone(fitted(name))
        parameter, value = next((key, value) for key, value in model.get_params().items() if key in ("knots", "leaves"))
        assert model.set_params(**{parameter: value + 1}).get_params()[parameter] == value + 1

    @pytest.mark.thinned(every=8)
    def test_never_falls_in_the_share(self, name: str) -> None:
        seen = np.random.default_rng(4).normal(0, 3, (10_000, fitted(name).n_features_in_))
        assert falls(fitted(name), seen, SHARES) == 0

    def test_rises_in_the_share(self, name: str) -> None:
        seen, _, _ = drawn(name, 1000, 3)
        low, high = seen.copy(), seen.copy()
        low[:, SHARE], high[:, SHARE] = -3, 7
        rise = fitted(name).predict_proba(high)[:, 1] - fitted(name).predict_proba(low)[:, 1]
        assert rise.mean() > 0.2  # .31 in truth

    def test_a_single_row_gets_the_same_probability(self, name: str) -> None:
        seen, _, _ = drawn(name, 500, 3)
        seen = np.concatenate([seen, 30 * seen])  # and far from what it has seen
        one = [fitted(name).probability(row) for row in seen.tolist()]
        assert np.abs(one - fitted(name).predict_proba(seen)[:, 1]).max() < 1e-9

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_refuses_what_is_not_finite(self, name: str, bad: float) -> None:
        seen, y, _ = drawn(name, 200, 3)
        seen = seen.copy()
        seen[7, 4] = bad
        for ask in (lambda: clone(fitted(name)).fit(seen, y), lambda: fitted(name).predict_proba(seen)):
            with pytest.raises(UsageError, match="column 4 of X has a NaN or inf"):
                ask()
        with pytest.raises(UsageError, match="column 4 of X has a NaN or inf"):
            fitted(name).probability(seen[7].tolist())

    @pytest.mark.parametrize("only", [0, 1])
    def test_refuses_one_class(self, name: str, only: int) -> None:
        seen, _, _ = drawn(name, 200, 3)
        with pytest.raises(UsageError, match=f"y holds \\[{only}\\]"):
            clone(fitted(name)).fit(seen, np.full(200, only))

    def test_refuses_other_shapes(self, name: str) -> None:
        seen, y, _ = drawn(name, 200, 3)
        model = fitted(name)
        for ask, words in (
            (lambda: clone(model).fit(seen, y[1:]), r"y has shape \(199,\)"),
            (lambda: clone(model).fit(seen[:, 0], y), r"X has shape \(200,\)"),
            (lambda: clone(model).fit(seen[:0], y[:0]), r"X has shape \(0, "),
            (lambda: model.predict_proba(seen[:, 1:]), "fitted on"),
            (lambda: model.probability(seen[0, 1:].tolist()), "fitted on"),
        ):
            with pytest.raises(UsageError, match=words):
                ask()

    def test_is_restored_from_its_parts(self, name: str) -> None:
        seen, _, _ = drawn(name, 500, 3)
        told = fitted(name).parts()
        arrays = {
            key: np.frombuffer(each.tobytes(), each.dtype).reshape(each.shape) for key, each in told.arrays.items()
        }
        again = restore_model(Parts(json.loads(json.dumps(told.numbers)), arrays, told.text))
        assert type(again) is type(fitted(name))
        assert np.array_equal(again.predict_proba(seen), fitted(name).predict_proba(seen))
        assert [again.probability(row) for row in seen[:50].tolist()] == [
            fitted(name).probability(row) for row in seen[:50].tolist()
        ]
        assert json.dumps(again.parts().numbers) == json.dumps(told.numbers)

    def test_learns(self, name: str) -> None:
        """The true AUC is .90 or .93, its standard error over these rows .004: a false alarm in 1e10 runs."""
        seen, y, chance = drawn(name, JUDGE, 2)
        forecast = fitted(name).predict_proba(seen)[:, 1]
        assert auc(y, forecast) > auc(y, chance) - 0.05
        assert log_loss(y, forecast) < log_loss(y, np.full(len(y), y.mean())) - 0.1


def test_every_kind_conforms() -> None:
    assert {fitted(name).kind for name in UNFITTED} == set(MODELS)


@pytest.mark.parametrize("name", ["boosted", "head"])
def test_learns_interactions(name: str) -> None:
    """Labels that depend on the product of two columns: a sum of functions of each cannot learn them."""
    seen, y, _ = drawn(name, JUDGE, 2)
    gain = auc(y, fitted(name).predict_proba(seen)[:, 1]) - auc(y, fitted("logistic").predict_proba(seen)[:, 1])
    assert gain > 0.02  # .034; its standard error is below .004


def test_head_reads_hidden_states() -> None:
    seen, y, _ = drawn("head on hidden states", JUDGE, 2)
    blind = MLP(share=SHARE, steps=300).fit(*[each[:FIT] for each in (seen[:, :FEATURES], y)])
    seeing = auc(y, fitted("head on hidden states").predict_proba(seen)[:, 1])
    assert seeing > auc(y, blind.predict_proba(seen[:, :FEATURES])[:, 1]) + 0.03


def test_the_rise_with_the_share_differs_by_context() -> None:
    """The true rise is 0 where the entropy is 0, and .4 per unit where it is above 1."""
    seen, _, _ = drawn("logistic", 1000, 3)
    calm = seen[:, 0] < np.quantile(seen[:, 0], 0.1)
    low, high = seen.copy(), seen.copy()
    low[:, SHARE], high[:, SHARE] = -3, 7
    for name in ("logistic", "boosted", "head"):
        rise = fitted(name).logits(high) - fitted(name).logits(low)
        assert rise[~calm].mean() > 2 * rise[calm].mean()


class TestCalibrated:
    @pytest.mark.thinned(every=4)
    @pytest.mark.parametrize("name", UNFITTED)
    def test_corrects_a_biased_model(self, name: str) -> None:
        """Fitted on rows of which three of four accepted ones were dropped; compared with the true probabilities."""
        seen, y, _ = drawn(name, FIT, 0)
        kept = ~y | (np.arange(FIT) % 4 == 0)
        biased = clone(fitted(name)).fit(seen[kept], y[kept])
        mended = Calibrated(biased).fit(*drawn(name, MEND, 1)[:2])
        judge, _, chance = drawn(name, JUDGE, 2)
        assert calibration_error(chance, biased.predict_proba(judge)[:, 1]) > 0.1
        assert calibration_error(chance, mended.predict_proba(judge)[:, 1]) < 0.03

    def test_corrects_each_share(self) -> None:
        """Fitted on rows among which none with a large share was accepted."""
        seen, y, _ = drawn("boosted", FIT, 0)
        known = seen[:, SHARE] < 2
        mended = Calibrated(Boosted(share=SHARE).fit(seen[known], y[known])).fit(*drawn("boosted", MEND, 1)[:2])
        judge, _, chance = drawn("boosted", JUDGE, 2)
        for low in (-4, 0, 4):
            some = (judge[:, SHARE] > low) & (judge[:, SHARE] < low + 4)
            assert calibration_error(chance[some], mended.predict_proba(judge[some])[:, 1]) < 0.05

    def test_keeps_the_order_at_each_share(self) -> None:
        seen, _, _ = drawn("boosted", 2000, 3)
        seen = seen.copy()
        seen[:, SHARE] = 1
        before, after = fitted("boosted").logits(seen), fitted("boosted, calibrated").logits(seen)
        assert (np.diff(after[np.argsort(before)]) >= -1e-12).all()

    def test_does_not_change_the_model(self) -> None:
        seen, _, _ = drawn("boosted", 100, 3)
        model = Boosted(share=SHARE).fit(*drawn("boosted", FIT, 0)[:2])
        before = model.predict_proba(seen)
        wrong = Calibrated(model).fit(*rows(1000, 8)[:2])
        assert np.array_equal(model.predict_proba(seen), before)
        assert isinstance(wrong, Calibrated)
        assert wrong.share == SHARE

    def test_needs_a_fitted_model_and_its_columns(self) -> None:
        seen, y, _ = drawn("boosted", 200, 3)
        with pytest.raises(UsageError, match="call fit"):
            Calibrated(Boosted(share=SHARE)).fit(seen, y)
        with pytest.raises(UsageError, match="fitted on 6"):
            Calibrated(fitted("boosted")).fit(seen[:, :4], y)


@pytest.mark.parametrize("share", [-1, FEATURES])
def test_refuses_a_share_that_is_no_column(share: int) -> None:
    with pytest.raises(UsageError, match=f"share is {share}; it must be one of the 6 columns"):
        Boosted(share=share).fit(*drawn("boosted", 200, 3)[:2])


@pytest.mark.parametrize("model", [Logistic(), Boosted(), MLP(steps=200)])
def test_accepts_constant_columns(model: AcceptanceModel) -> None:
    """One constant column and one that is nearly always 0."""
    seen, y, _ = drawn("boosted", 2000, 3)
    seen = np.column_stack([seen[:, SHARE], np.zeros(2000), np.arange(2000) == 7])
    model.fit(seen, y)
    assert np.isfinite(model.predict_proba(5 * seen)).all()
    assert falls(model, seen, SHARES) == 0
