"""Single rows through LightGBM's C API: equal scores, and the fallback where they are not available."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import lightgbm
import numpy as np
import pytest
from lightgbm import basic

from fsd_predictors.models.boosted import Boosted, FastRow, one_row
from support.traces.acceptance_rows import SHARE, rows


@pytest.fixture(scope="module")
def booster() -> lightgbm.Booster:
    return Boosted(share=SHARE).fit(*rows(5000, 0)[:2]).booster_


def test_equals_predict(booster: lightgbm.Booster) -> None:
    seen = rows(500, 1)[0]
    told = np.concatenate([seen, -100 * seen, np.zeros((1, seen.shape[1]))])
    fast = one_row(booster)
    assert isinstance(fast, FastRow)
    assert [fast(row) for row in told.tolist()] == np.asarray(booster.predict(told, raw_score=True)).tolist()


def test_each_has_its_own_model() -> None:
    seen = rows(50, 1)[0]
    models = [Boosted(share=SHARE, seed=seed, trees=5 + seed).fit(*rows(5000, seed)[:2]) for seed in range(2)]
    scores = [(models[0].logit(row), models[1].logit(row)) for row in seen.tolist()]
    assert scores == list(zip(*(model.logits(seen).tolist() for model in models), strict=True))


@pytest.mark.slow
def test_keeps_its_model_alive() -> None:
    model = Boosted(share=SHARE).fit(*rows(5000, 0)[:2])
    row = rows(1, 1)[0][0].tolist()
    fast, told = one_row(model.booster_), model.logit(row)
    del model
    gc.collect()
    Boosted(share=SHARE).fit(*rows(5000, 3)[:2])  # might take its place in memory
    assert fast(row) == told


def test_accepts_all_kinds_of_numbers(booster: lightgbm.Booster) -> None:
    fast = one_row(booster)
    assert fast([1, np.float64(2), 3.0, False, 0, 1]) == fast([1.0, 2.0, 3.0, 0.0, 0.0, 1.0])


def test_falls_back_where_the_call_is_missing(booster: lightgbm.Booster, monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows(1, 1)[0]
    monkeypatch.setattr(basic, "_LIB", SimpleNamespace())
    with pytest.warns(UserWarning, match=r"LightGBM .* has no such call \(.*\): one row takes longer"):
        slow = one_row(booster)
    monkeypatch.undo()
    assert not isinstance(slow, FastRow)
    assert slow(row[0].tolist()) == np.asarray(booster.predict(row, raw_score=True))[0]


class Otherwise:
    """LightGBM's library with a single-row call that returns probabilities instead of scores."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def LGBM_BoosterPredictForMatSingleRowFastInit(self, booster: Any, kind: int, *rest: Any) -> Any:  # noqa: N802
        return self._library.LGBM_BoosterPredictForMatSingleRowFastInit(booster, 0, *rest)


def test_falls_back_where_the_call_gives_other_scores(
    booster: lightgbm.Booster, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = rows(1, 1)[0]
    monkeypatch.setattr(basic, "_LIB", Otherwise(basic._LIB))  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="gives other scores by its C API: one row takes longer"):
        slow = one_row(booster)
    assert not isinstance(slow, FastRow)
    assert slow(row[0].tolist()) == np.asarray(booster.predict(row, raw_score=True))[0]


@pytest.mark.slow
def test_threads_do_not_mix_their_rows(booster: lightgbm.Booster) -> None:
    """Without the lock this fails in nearly every run."""
    seen = rows(20_000, 1)[0]
    fast, told = one_row(booster), np.asarray(booster.predict(seen, raw_score=True)).tolist()
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda each: [fast(row) for row in each], [seen.tolist()] * 4))
    assert answers == [told] * 4
