"""Fast prediction of single rows by LightGBM's C API: a few microseconds, where `Booster.predict` takes 15 or more.

LightGBM's Python package does not offer this call, so its result is compared with `Booster.predict` before it is used.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import warnings
from collections.abc import Callable, Sequence

import lightgbm
import numpy as np
from lightgbm import basic

from fsd_predictors.models.base import Array

Score = Callable[[Sequence[float]], float]

_ROWS = 64  # random rows on which the two are compared


def one_row(booster: lightgbm.Booster) -> Score:
    """Returns a function that gives the raw score of one row.

    It makes the fast call where that agrees with `Booster.predict`, and falls back to the latter with a warning.
    """
    try:
        fast = FastRow(booster)
        rows = _rows(booster)
        same = [fast(row) for row in rows.tolist()] == booster.predict(rows, raw_score=True).tolist()  # type: ignore[union-attr]
    except (AttributeError, ctypes.ArgumentError, basic.LightGBMError) as error:
        return _slow(booster, f"has no such call ({error})")
    return fast if same else _slow(booster, "gives other scores by its C API")


class FastRow:
    """LGBM_BoosterPredictForMatSingleRowFast with preallocated buffers, which a lock keeps to one thread at a time."""

    def __init__(self, booster: lightgbm.Booster) -> None:
        library = basic._LIB  # type: ignore[attr-defined]  # private: `one_row` handles its absence
        self._lock = threading.Lock()
        self._booster = booster  # the configuration points into it: it must not be freed
        self._pack = struct.Struct(f"{booster.num_feature()}d").pack_into
        self._values = (ctypes.c_double * booster.num_feature())()
        self._score, self._length = ctypes.c_double(), ctypes.c_int64()
        self._call = library.LGBM_BoosterPredictForMatSingleRowFast
        self._free = library.LGBM_FastConfigFree
        self._configuration = ctypes.c_void_p()
        basic._safe_call(
            library.LGBM_BoosterPredictForMatSingleRowFastInit(
                booster._handle, basic._C_API_PREDICT_RAW_SCORE, 0, -1, basic._C_API_DTYPE_FLOAT64,
                booster.num_feature(), b"num_threads=1", ctypes.byref(self._configuration),
            )
        )  # fmt: skip
        self._pointers = (ctypes.byref(self._values), ctypes.byref(self._length), ctypes.byref(self._score))

    def __call__(self, values: Sequence[float]) -> float:
        with self._lock:  # ctypes releases the GIL during the call
            self._pack(self._values, 0, *values)
            if self._call(self._configuration, *self._pointers):
                basic._safe_call(-1)  # raises, with LightGBM's message
            return self._score.value

    def __del__(self) -> None:
        if getattr(self, "_configuration", None):
            self._free(self._configuration)


def _slow(booster: lightgbm.Booster, why: str) -> Score:
    warnings.warn(f"LightGBM {lightgbm.__version__} {why}: one row takes longer, by Booster.predict", stacklevel=4)
    return lambda values: float(booster.predict(np.array([values]), raw_score=True)[0])  # type: ignore[index, arg-type]


def _rows(booster: lightgbm.Booster) -> Array:
    """Returns random rows over the range that the model recorded for every feature."""
    model = booster.dump_model()
    ranges = [model["feature_infos"].get(name, {}) for name in model["feature_names"]]
    low, high = ([float(each.get(key, 0)) for each in ranges] for key in ("min_value", "max_value"))
    return np.random.default_rng(0).uniform(low, high, (_ROWS, len(ranges)))
