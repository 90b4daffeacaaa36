"""Metrics of forecasts of acceptance: AUC, calibration error, and monotonicity in T."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from fsd_common.errors import UsageError
from fsd_predictors.models.base import AcceptanceModel, Array

BINS = 15
_ROUNDING = 1e-12  # error of a probability that is no fall


def auc(accepted: Array, score: Array) -> float:
    """Returns the probability that an accepted row has a higher score than a rejected one; both arguments (n,).

    Raises:
        UsageError: all rows are of one class.
    """
    if accepted.all() or not accepted.any():
        raise UsageError(f"all {len(accepted)} rows are of one class; AUC needs accepted and rejected rows")
    return float(roc_auc_score(accepted, score))


def bins(accepted: Array, forecast: Array, count: int = BINS) -> tuple[Array, Array]:
    """Returns the mean forecast and the share accepted in up to `count` bins of equally many rows, in rising order.

    Rows with equal forecasts always share a bin, so the result does not depend on the order of the rows.
    """
    return _binned(accepted, forecast, count)[:2]


def calibration_error(accepted: Array, forecast: Array, count: int = BINS) -> float:
    """Returns the expected calibration error (Naeini et al. 2015) over bins of equally many rows.

    It is the mean |forecast − share accepted| over the bins. Perfect forecasts of n rows still have an error of about
    .8·sqrt(count·p(1−p)/n).
    """
    forecasts, outcomes, shares = _binned(accepted, forecast, count)
    return float(np.abs(forecasts - outcomes) @ shares)


def falls(model: AcceptanceModel, rows: Array, shares: Array) -> int:
    """Counts the rows (n, features) whose probability falls anywhere as their share rises through `shares`."""
    probabilities = np.empty((len(rows), len(shares)))
    for place, share in enumerate(np.sort(shares)):
        changed = rows.copy()
        changed[:, model.share] = share
        probabilities[:, place] = model.predict_proba(changed)[:, 1]
    return int((np.diff(probabilities, axis=1) < -_ROUNDING).any(1).sum())


def _binned(accepted: Array, forecast: Array, count: int) -> tuple[Array, Array, Array]:
    """Returns the mean forecast, the share accepted and the share of rows of each bin."""
    _, place, rows = np.unique(forecast, return_inverse=True, return_counts=True)
    middle = np.cumsum(rows) - rows / 2
    bin_of = (middle * count / len(forecast)).astype(int)[place]
    sizes = np.bincount(bin_of, minlength=count)
    forecasts, outcomes = (np.bincount(bin_of, weights=each, minlength=count) for each in (forecast, accepted))
    full = sizes > 0
    return forecasts[full] / sizes[full], outcomes[full] / sizes[full], sizes[full] / len(forecast)
