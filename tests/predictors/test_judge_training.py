"""Training of judges: what labels hold is found, bounds hold, and what is evaluated was never trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fsd_common.errors import UsageError
from fsd_decoding.judging.features import FEATURES, TABLE
from fsd_decoding.judging.on_device import OnDevice
from fsd_decoding.sampling import Sampling
from fsd_predictors.judging.card import card_elsewhere, card_of, elsewhere, rankings
from fsd_predictors.judging.models import KINDS, Examples, Fitted
from fsd_predictors.judging.training import FOLDS, SHOWN, Origin, Trained, examples_of, train_judge
from fsd_predictors.training.evaluation import bins, calibration_error

ORIGIN = Origin("t", "d", "k", Sampling(), "made up", torch.zeros(9, dtype=torch.uint8))
SETTINGS = {kind: KINDS[kind].usual for kind in KINDS}
EVERY = range(len(FEATURES))


def labels(rows: int = 900, problems: int = 90, seed: int = 0) -> pd.DataFrame:
    """Mismatches of which those of digits are harmful, half of them where log p(x) is above -5, all below."""
    random = np.random.default_rng(seed)
    columns = {name: random.normal(size=rows) for name in FEATURES}
    columns |= {name: random.integers(0, 2, rows).astype(float) for name in FEATURES if TABLE[name].classed}
    columns["log_p_x"] = random.uniform(-10, 0, rows)
    chance = columns["x_digits"] * np.where(columns["log_p_x"] < -5, 1.0, 0.5)
    return pd.DataFrame({
        "problem": random.integers(0, problems, rows), "harmful": random.random(rows) < chance,
        "probability": np.ones(rows), **columns,
    })  # fmt: skip


@pytest.fixture(scope="module", params=sorted(KINDS))
def trained(request: pytest.FixtureRequest) -> Trained:
    return train_judge(labels(), ORIGIN, kinds=(request.param,), trials=0)


def test_it_learns_what_matters(trained: Trained) -> None:
    """AUC of the truth: (P(harmful) is 0, 1/2 or 1) about .94; a standard error is .01."""
    found = rankings(trained)
    assert found["judge"] > 0.9 > max(auc for name, auc in found.items() if name != "judge")


def test_it_is_calibrated_on_problems_it_has_not_seen(trained: Trained) -> None:
    """Of 900 fresh mismatches, in thirds: standard errors are below .03, so a false alarm has a chance below 1e-4.

    What is harmful depends on a product of features here, which lines cannot tell: they are right on the whole.
    """
    fresh = labels(seed=1)
    chance = 1 / (1 + np.exp(-trained.fitted.logits(fresh[list(FEATURES)].to_numpy())))
    for part in np.array_split(np.argsort(chance), 3 if trained.judge.kind == "boosted" else 1):
        assert abs(chance[part].mean() - fresh["harmful"].to_numpy()[part].mean()) < 0.12


def test_no_problem_is_judged_by_a_judge_of_its_own() -> None:
    """Harmful is a coin of each problem's own here: what was trained on the problem would know it."""
    random = np.random.default_rng(0)
    made = labels()
    side = made["problem"].map(dict(enumerate(random.random(90) < 0.5)))
    made["harmful"] = side.to_numpy(bool)
    made["log_q_x"] = made["problem"].to_numpy(float)  # by which trees could tell the problem
    unseen = train_judge(made, ORIGIN, kinds=("boosted",), trials=0).unseen
    assert abs(np.corrcoef(unseen, made["harmful"])[0, 1]) < 0.35  # of 90 coins: a standard error is about .1


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), column=st.sampled_from([c for c in EVERY if TABLE[FEATURES[c]].sign]))
def test_no_feature_works_against_its_sign(kind: str, seed: int, column: int) -> None:
    """Though labels say so: harmful is what has a small margin and rank, and a large log p(x)."""
    random, sign = np.random.default_rng(seed), TABLE[FEATURES[column]].sign
    fitted = against_their_signs(kind)
    rows = np.repeat(random.normal(size=(4, len(FEATURES))), 12, axis=0)
    rows[:, column] = np.tile(np.sort(random.normal(scale=2, size=12)), 4)
    rises = sign * np.diff(fitted.logits(rows).reshape(4, 12), axis=1)
    assert (rises >= -1e-5).all()


_FITTED: dict[str, Fitted] = {}


def against_their_signs(kind: str) -> Fitted:
    if kind not in _FITTED:
        examples = examples_of(labels())
        signed = sum(TABLE[FEATURES[c]].sign * examples.values[:, c] for c in EVERY if TABLE[FEATURES[c]].sign)
        wrong = examples._replace(harmful=signed + examples.values[:, 2] < 0)
        _FITTED[kind] = KINDS[kind].fit(wrong, EVERY, SETTINGS[kind])
    return _FITTED[kind]


def test_lines_are_flat_beyond_what_they_were_fitted_to() -> None:
    """A piece of one example may have any slope."""
    examples = examples_of(labels())
    fitted = KINDS["logistic"].fit(examples, EVERY, SETTINGS["logistic"])
    lowest, highest = examples.values.min(0), examples.values.max(0)
    rows = 3 * examples.values
    assert fitted.logits(rows) == pytest.approx(fitted.logits(np.clip(rows, lowest, highest)), abs=1e-4)
    assert abs(fitted.logits(rows)).max() < 40  # far from where a chance is 0 or 1 in fp32


def test_trees_are_those_of_lightgbm() -> None:
    examples, given = examples_of(labels()), SETTINGS["boosted"]
    fitted = KINDS["boosted"].fit(examples, EVERY, given)
    booster = trained_alike(examples, given)
    rows = examples.values[:200].astype(np.float32).astype(np.float64)  # as decoding has them
    wanted = np.asarray(booster.predict(rows, raw_score=True))
    assert fitted.logits(rows) == pytest.approx(wanted, abs=1e-5)


def trained_alike(examples: Examples, given: Mapping[str, Any]) -> lightgbm.Booster:
    parameters = {
        "objective": "binary", "num_leaves": 8, "max_depth": 3, "learning_rate": given["learning_rate"],
        "min_data_in_leaf": given["rows_a_leaf"], "lambda_l2": given["l2"], "verbose": -1, "deterministic": True,
        "force_row_wise": True, "num_threads": 1, "monotone_constraints": [TABLE[name].sign for name in FEATURES],
    }  # fmt: skip
    return lightgbm.train(parameters, lightgbm.Dataset(examples.values, examples.harmful), given["trees"])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_counts_are_copies(kind: str) -> None:
    """A mismatch that counts twice, as it was sampled with half the chance, is there twice."""
    examples = examples_of(labels())
    twice = examples._replace(counts=np.where(np.arange(900) < 300, 2.0, 1.0))
    copied = examples.at(np.r_[np.arange(300), np.arange(900)])
    given = {**SETTINGS[kind], "rows_a_leaf": 1, "knots": 0}  # rows of a leaf are not weighted, nor are knots
    one, other = (KINDS[kind].fit(each, EVERY, given).logits(examples.values) for each in (twice, copied))
    if kind == "logistic":  # columns are standardised without counts, by which the penalty differs
        assert np.corrcoef(one, other)[0, 1] > 0.999
    else:
        assert np.corrcoef(one, other)[0, 1] > 0.97


def test_calibration_is_folded_into_the_numbers(trained: Trained) -> None:
    fitted, rows = trained.fitted, trained.examples.values[:50]
    again: NDArray[Any] = fitted.calibrated(0.5, -1.0).logits(rows)
    assert again == pytest.approx(0.5 * fitted.logits(rows) - 1.0, abs=1e-4)


def test_a_judge_evaluates_as_it_was_fitted(trained: Trained) -> None:
    judge, rows = trained.judge, trained.examples.values[:50]
    values = torch.from_numpy(rows[:, [FEATURES.index(name) for name in judge.features]]).float()
    found = OnDevice.of(judge.offset, judge.line, judge.trees, torch.device("cpu")).logit(values)
    assert found.numpy() == pytest.approx(trained.fitted.logits(rows), abs=1e-5)
    assert judge.trained_ids == set(labels()["problem"])


def test_by_default_it_reads_what_every_engine_shows() -> None:
    made = labels()
    made["harmful"] = made["before_digits"] == 1  # which the text before tells, and nothing else
    seen = {features: train_judge(made, ORIGIN, features, ("logistic",), trials=0) for features in (SHOWN, FEATURES)}
    assert not any(TABLE[name].context for name in seen[SHOWN].judge.features)
    assert "before_digits" in seen[FEATURES].judge.features


def test_problems_that_were_read_count_as_trained_on() -> None:
    judge = train_judge(labels(), ORIGIN, kinds=("logistic",), trials=0, read=[5, 1_000, 2_000]).judge
    assert judge.trained_ids == {*labels()["problem"], 1_000, 2_000}


def test_labels_by_likelihood_are_refused() -> None:
    with pytest.raises(UsageError, match="the labels are changes of a likelihood"):
        train_judge(labels().rename(columns={"harmful": "change"}), ORIGIN)


def test_a_card_counts_mismatches_by_their_weights() -> None:
    """A mismatch of weight 3 counts as three of weight 1."""
    random = np.random.default_rng(0)
    forecast, weights = random.random(60), random.integers(1, 4, 60)
    harmful = random.random(60) < forecast
    outcomes, forecasts = np.repeat(harmful, weights), np.repeat(forecast, weights)
    for one, other in zip(bins(harmful, forecast, 6, weights), bins(outcomes, forecasts, 6), strict=True):
        assert one == pytest.approx(other)
    error = calibration_error(outcomes, forecasts, 6)
    assert calibration_error(harmful, forecast, 6, weights) == pytest.approx(error)


@pytest.mark.slow
def test_optuna_chooses_kind_and_settings() -> None:
    found = train_judge(labels(400), ORIGIN, trials=4).settings
    assert found["kind"] in KINDS
    assert train_judge(labels(400), ORIGIN, trials=4).settings == found


def test_a_card_says_what_was_found(trained: Trained) -> None:
    text = card_of(trained)
    for part in (
        "Ranking of harmful mismatches",
        "| judge | 0.9",
        "| margin | 0.",
        "Calibration",
        "x_digits",
        "900, of",
    ):
        assert part in text


def test_a_card_says_what_a_judge_is_worth_on_other_tasks(trained: Trained) -> None:
    """On one like its own, and on one where what is harmful is the opposite."""
    like = labels(seed=1)
    unlike = like.assign(harmful=~like["harmful"])
    assert elsewhere(trained.judge, like)["judge"] > 0.9
    assert elsewhere(trained.judge, unlike)["judge"] == pytest.approx(1 - elsewhere(trained.judge, like)["judge"])
    text = card_elsewhere(trained.judge, {"like": like, "unlike": unlike})
    assert "| like | 900 | 0.9" in text
    assert "| unlike | 900 | 0.0" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"harmful": False}, "0 of 900 labelled mismatches are harmful; a judge needs at least 10"),
        ({"harmful": True}, "0 of 900 labelled mismatches are harmless"),
        ({"problem": 7}, f"of 1 problems; a judge needs at least {FOLDS}"),
    ],
)
def test_too_little_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train_judge(labels().assign(**changes), ORIGIN, trials=0)
