"""How good forecasts of acceptance are.

Knows forecasts, what came true, and whether a model falls in T. Knows neither features nor how models work.
"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from fsd_decoding.errors import UsageError
from fsd_predictors.models.base import AcceptanceModel, Array

BINS = 15
_ROUNDING = 1e-12  # of a probability


def auc(accepted: Array, by: Array) -> float:
    """The chance that an accepted row has more of `by` than a refused one, both (n,). UsageError: one class only."""
    if accepted.all() or not accepted.any():
        raise UsageError(f"all {len(accepted)} rows are of one class; AUC compares accepted ones with refused ones")
    return float(roc_auc_score(accepted, by))


def bins(accepted: Array, forecast: Array, count: int = BINS) -> tuple[Array, Array]:
    """Means of the forecast and of what came true in up to `count` bins of equally many rows, lowest forecasts first.

    Rows of equal forecast may be divided, so ties are taken together first: their order must not matter.
    """
    return _binned(accepted, forecast, count)[:2]


def calibration_error(accepted: Array, forecast: Array, count: int = BINS) -> float:
    """Expected calibration error (Naeini et al. 2015) over bins of equally many rows: mean |forecast − came true|.

    Perfect forecasts of n rows still show about .8·sqrt(count·p(1−p)/n).
    """
    said, came, shares = _binned(accepted, forecast, count)
    return float(np.abs(said - came) @ shares)


def falls(model: AcceptanceModel, rows: Array, shares: Array) -> int:
    """In how many of the rows (n, features) the probability falls anywhere as their share goes through `shares`."""
    seen = np.empty((len(rows), len(shares)))
    for place, share in enumerate(np.sort(shares)):
        changed = rows.copy()
        changed[:, model.share] = share
        seen[:, place] = model.predict_proba(changed)[:, 1]
    return int((np.diff(seen, axis=1) < -_ROUNDING).any(1).sum())


def _binned(accepted: Array, forecast: Array, count: int) -> tuple[Array, Array, Array]:
    """Means of the forecast and of what came true, and the share of rows, of each bin."""
    _, place, rows = np.unique(forecast, return_inverse=True, return_counts=True)
    middle = np.cumsum(rows) - rows / 2
    bin_of = (middle * count / len(forecast)).astype(int)[place]
    sizes = np.bincount(bin_of, minlength=count)
    said, came = (np.bincount(bin_of, weights=each, minlength=count) for each in (forecast, accepted))
    full = sizes > 0
    return said[full] / sizes[full], came[full] / sizes[full], sizes[full] / len(forecast)
