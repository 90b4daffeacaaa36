"""The result cache: what it answers. No models: keys and results are written down."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.measuring.cache_key import CacheKey
from fsd_calib.measuring.result_cache import CachedText, CacheQuery, ResultCache
from support.cached_results import KEY, QUERY, key, result


def answered(threshold: float | None, *, own: float | None, lo: float, hi: float, asking: CacheKey = KEY) -> bool:
    with ResultCache(None) as store:
        store.add(asking, QUERY, own, result(lo=lo, hi=hi))
        return bool(store.find(asking, [QUERY], threshold))


def test_a_row_comes_back_as_it_was_added() -> None:
    with ResultCache(None) as store:
        added = store.add(KEY, QUERY, 0.2, result("vier 🙂\0\n", tokens=7))
        assert store.find(KEY, [QUERY], 0.2) == {0: added}
        assert added == CachedText(0.2, 0.1, 0.3, "vier 🙂\0\n", 8, 3, 15, 5)  # 7 tokens and the EOS


def test_prompts_are_answered_by_their_place() -> None:
    others = [CacheQuery(5, "2 + 3"), CacheQuery(6, "2 + 2"), QUERY, QUERY]
    with ResultCache(None) as store:
        store.add(KEY, QUERY, 0.2, result())
        assert set(store.find(KEY, others, 0.2)) == {2, 3}
        assert not store.find(key(max_new_tokens=255), others, 0.2)
        assert not store.find(KEY, [], 0.2)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-0.1, 1.1), st.sampled_from(["float64", "float32", "bfloat16"]))
def test_inside_its_interval_by_the_margin_a_row_answers(a: float, b: float, t: float, dtype: str) -> None:
    lo, hi = sorted((a, b))
    asking = key(dtype)
    margin = asking.margin(t)
    inside = lo <= t - margin and t + margin < hi
    assert answered(t, own=2.0, lo=lo, hi=hi, asking=asking) == inside
    assert answered(t, own=t, lo=lo, hi=hi, asking=asking)  # whatever the margin says


@given(st.floats(0, 40), st.floats(-1, 1), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_a_divergence_that_moves_by_its_rounding_stays_on_its_side(d: float, by: float, dtype: str) -> None:
    """Any D that, decoded elsewhere, lies at most c sqrt(larger of both) away is on the same side of T."""
    asking = key(dtype, "kl_qp")
    c = math.sqrt(asking.margin(0.0))
    moved = max(0.0, d + by * c * math.sqrt(d))
    for t in (moved, (d + moved) / 2):  # thresholds between the two: never answered by D as an end
        assert not answered(t, own=None, lo=d, hi=math.inf, asking=asking)
        assert not answered(t, own=None, lo=-math.inf, hi=d, asking=asking)


@pytest.mark.parametrize(
    ("dtype", "divergence", "at", "margin"),
    [("float64", "js", 1.0, 1e-12), ("float32", "js", 0.06, 4.9e-6), ("float32", "js@50", 0.06, 4.9e-6),
     ("float32", "kl_qp", 10.0, 1.9e-4), ("bfloat16", "tv", 0.06, 0.049), ("float8_e4m3fn", "js", 0.06, math.inf)],
)  # fmt: skip
def test_margins_are_those_measured(dtype: str, divergence: str, at: float, margin: float) -> None:
    assert key(dtype, divergence).margin(at) == pytest.approx(margin, rel=0.02)


def test_the_coarser_of_two_dtypes_decides_and_an_ngram_has_none() -> None:
    mixed = {"target": {"dtype": "float32"}, "draft": {"dtype": "bfloat16"}}
    assert key(models=mixed).margin(0.1) == key("bfloat16").margin(0.1)
    assert key(models=mixed | {"draft": "NGram()"}).margin(0.1) == key("float32").margin(0.1)


@pytest.mark.parametrize(
    ("t", "lo", "hi", "expected"),
    [(-1e-9, -math.inf, 0.01, True), (-5.0, -math.inf, 0.01, True), (-math.inf, -math.inf, 0.01, True),
     (-1e-9, 0.0, 0.01, False), (50.0, 0.2, math.inf, True), (0.0, -math.inf, math.inf, True),
     (0.2, 0.2, math.nextafter(0.2, 1), False), (math.inf, 0.2, 9.0, False)],
)  # fmt: skip
def test_infinite_ends_and_thresholds_below_zero(t: float, lo: float, hi: float, expected: bool) -> None:
    assert answered(t, own=1.0, lo=lo, hi=hi) == expected


def test_an_unmeasured_dtype_answers_for_the_very_threshold_alone() -> None:
    for t in (0.2, -1.0, math.inf):
        assert not answered(t, own=0.25, lo=-math.inf, hi=math.inf, asking=key("float8_e4m3fn"))
        assert answered(t, own=t, lo=-math.inf, hi=math.inf, asking=key("float8_e4m3fn"))


def test_a_rule_without_a_threshold_is_asked_without_one() -> None:
    assert answered(None, own=None, lo=-math.inf, hi=math.inf)
    assert not answered(None, own=0.2, lo=-math.inf, hi=math.inf)


def test_of_overlapping_rows_the_one_of_the_very_threshold_answers() -> None:
    with ResultCache(None) as store:
        for t in (0.15, 0.2, 0.25):
            store.add(KEY, QUERY, t, result(str(t)))
        assert store.find(KEY, [QUERY], 0.2)[0].text == "0.2"
        assert store.find(KEY, [QUERY], 0.22)[0].text in ("0.15", "0.2", "0.25")


def test_minus_zero_is_zero(tmp_path: Path) -> None:
    with ResultCache(tmp_path / "cache") as store:
        store.add(KEY, QUERY, -0.0, result(lo=-math.inf, hi=-0.0))
        assert store.find(KEY, [QUERY], 0.0)[0].threshold == 0.0


def test_a_thousand_problems_at_ten_thresholds_are_found_in_well_under_a_second(tmp_path: Path) -> None:
    """Among 10,000 rows; the index makes it the same among a million (0.3 s)."""
    rows = [CacheQuery(i, f"problem {i}" * 10) for i in range(1000)]
    with ResultCache(tmp_path / "cache") as store:
        for n in range(10):
            for asked in rows:
                store.add(KEY, asked, n / 10 + 0.02, result("a text " * 40, n / 10, (n + 1) / 10))
        start = time.perf_counter()
        assert sum(len(store.find(KEY, rows, 0.03 + n / 10)) for n in range(10)) == 10_000
        assert time.perf_counter() - start < 3  # 0.3 s on an idle machine


def test_equal_keys_have_equal_hashes_and_others_do_not() -> None:
    assert key().hash == key().hash
    changed = [dataclasses.replace(KEY, **change) for change in ({"seed": 0}, {"stop": ["a"]}, {"rule": "fsd"})]
    assert len({k.hash for k in (KEY, *changed)}) == 4
