"""The share scale: its values, and that it never falls."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_common.errors import UsageError
from fsd_predictors.share_scale import MOST, NEVER, ShareScale
from support.traces.memory_traces import MemoryManifest, MemoryTraces


def traces_of(**columns: list[float]) -> MemoryTraces:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return MemoryTraces([rows], manifest=MemoryManifest(divergences=tuple(columns)))


RNG = np.random.default_rng(0)
SCALE = ShareScale.of_traces(
    traces_of(js=RNG.lognormal(-3, 2, 4000).tolist(), tv=(RNG.random(4000) ** 3).tolist()), ["js", "tv"]
)
values = st.lists(st.floats(0.0, 2.0**40, width=32) | st.sampled_from([0.0, 1.0]) | st.just(math.inf), min_size=1)
anything = st.floats(allow_nan=False)


def share(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


@given(values, anything, anything)
def test_a_higher_threshold_has_no_smaller_share(divergences: list[float], one: float, other: float) -> None:
    if min(divergences) == math.inf:
        divergences = [*divergences, 1.0] * 2
    if divergences.count(math.inf) > 0.9 * len(divergences):
        return
    scale = ShareScale.of_traces(traces_of(js=divergences), ["js"])
    low, high = (scale.of("js", threshold) for threshold in sorted((one, other)))
    assert NEVER <= low <= high <= MOST


def test_the_share_is_that_of_rows_with_no_larger_divergence() -> None:
    rng = np.random.default_rng(1)
    d = np.where(rng.random(20_000) < 0.3, 0.0, rng.lognormal(-3, 2, 20_000))  # a third of them nothing at all
    scale = ShareScale.of_traces(traces_of(js=d.tolist()), ["js"])
    for threshold in (0.0, 0.003, 0.05, 0.4, 3.0):
        assert share(scale.of("js", threshold)) == pytest.approx((d <= threshold).mean(), abs=0.01)
    assert scale.of("js", -1e-9) == NEVER


def test_the_scale_is_clipped() -> None:
    assert SCALE.of("js", -1.0) == SCALE.of("js", -math.inf) == NEVER
    assert SCALE.of("js", math.inf) == SCALE.of("js", 1e9) == MOST
    assert (share(NEVER), share(MOST)) == pytest.approx((0.01, 0.9999))


def test_thresholds_of_several_divergences_are_those_of_their_own_rows() -> None:
    assert SCALE.divergences == ("js", "tv")
    assert [SCALE.index(name) for name in SCALE.divergences] == [0, 1]
    assert share(SCALE.of("tv", 0.5**3)) == pytest.approx(0.5, abs=0.03)  # six standard errors: false alarms 1e-4
    assert SCALE.of("js", 0.125) != SCALE.of("tv", 0.125)


def test_arrays_and_single_thresholds_get_the_same_shares() -> None:
    thresholds = np.array([-1.0, 0.01, 0.3, 5.0, math.inf])
    assert SCALE.of_all("js", thresholds).tolist() == [SCALE.of("js", each) for each in thresholds.tolist()]


@given(st.floats(NEVER, MOST))
def test_a_share_has_a_threshold_of_that_share(logit: float) -> None:
    (threshold,) = SCALE.thresholds_of("js", np.array([logit]))
    assert SCALE.of("js", threshold) == pytest.approx(logit, abs=1e-6)


def test_only_the_selected_rows_are_counted() -> None:
    rows = [[{"js": value, "problem": i}] * 10 for i, value in enumerate((0.1, 0.5, 5.0))]
    for chosen, expected in ((None, 1 / 3), (pc.field("problem") < 2, 1 / 2)):
        scale = ShareScale.of_traces(MemoryTraces(rows), ["js"], chosen)
        assert share(scale.of("js", 0.1001)) == pytest.approx(expected, abs=0.04)  # knots are .14 apart in logit(u)


def test_a_scale_is_restored_from_json() -> None:
    again = ShareScale.from_json(json.loads(json.dumps(SCALE.to_json())))
    assert again.to_json() == SCALE.to_json()
    assert again.of("tv", 0.2) == SCALE.of("tv", 0.2)


@pytest.mark.parametrize(
    ("plain", "complaint"),
    [
        ({"js": {"thresholds": [0.2, 0.1], "logits": [0.0, 1.0]}}, "must rise"),
        ({"js": {"thresholds": [0.1, 0.2], "logits": [1.0, 0.0]}}, "must rise"),
        ({"js": {"thresholds": [0.1], "logits": [0.0, 1.0]}}, "as many thresholds as logits"),
        ({"js": {"thresholds": [], "logits": []}}, "as many thresholds as logits"),
        ({"js": {"thresholds": [math.nan], "logits": [0.0]}}, "all finite"),
        ({"js": {"thresholds": ["low"], "logits": [0.0]}}, "is no share scale"),
        ({"js": {"logits": [0.0]}}, "is no share scale"),
        ([1.0], "is no share scale"),
    ],
)
def test_invalid_scales_are_refused_in_one_line(plain: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        ShareScale.from_json(plain)
    assert "\n" not in str(refused.value)


def test_unknown_divergences_and_nan_are_refused() -> None:
    with pytest.raises(UsageError, match=r"has the divergences js, tv, not 'ag'; train with it"):
        SCALE.of("ag", 0.1)
    with pytest.raises(UsageError, match="the threshold is NaN"):
        SCALE.of("js", math.nan)
    with pytest.raises(UsageError, match="no divergence 'ag'"):
        ShareScale.of_traces(traces_of(js=[0.1]), ["ag"])
    with pytest.raises(UsageError, match="'js' is infinite in nearly all rows"):
        ShareScale.of_traces(traces_of(js=[math.inf] * 3), ["js"])
