"""The result cache: its hits. Without models: keys and results are written by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.engines.cache_key import CacheKey
from fsd_calib.measuring.result_cache import CachedText, ResultCache
from fsd_decoding.divergence import DIVERGENCES
from support.calibration.cached_results import KEY, QUERY, key, result


def is_hit(threshold: float | None, *, own: float | None, lo: float, hi: float, cache_key: CacheKey = KEY) -> bool:
    with ResultCache(None) as store:
        store.add(cache_key, QUERY, own, result(lo=lo, hi=hi))
        return bool(store.find(cache_key, [QUERY], threshold))


def test_a_row_is_returned_as_it_was_added() -> None:
    with ResultCache(None) as store:
        added = store.add(KEY, QUERY, 0.2, result("vier 🙂\0\n", tokens=7))
        assert store.find(KEY, [QUERY], 0.2) == {0: added}
        assert added == CachedText(0.2, 0.1, 0.3, "vier 🙂\0\n", 8, 3, 15, 5)  # 7 tokens and the EOS


def test_hits_are_returned_by_the_index_of_the_prompt() -> None:
    others = [KeyedPrompt(5, "2 + 3"), KeyedPrompt(6, "2 + 2"), QUERY, QUERY]
    with ResultCache(None) as store:
        store.add(KEY, QUERY, 0.2, result())
        assert set(store.find(KEY, others, 0.2)) == {2, 3}
        assert not store.find(key(max_new_tokens=255), others, 0.2)
        assert not store.find(KEY, [], 0.2)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-0.1, 1.1), st.sampled_from(["float64", "float32", "bfloat16"]))
def test_a_row_is_a_hit_inside_its_interval_by_the_margin(a: float, b: float, t: float, dtype: str) -> None:
    lo, hi = sorted((a, b))
    cache_key = key(dtype)
    margin = cache_key.margin(t)
    inside = lo <= t - margin and t + margin < hi
    assert is_hit(t, own=2.0, lo=lo, hi=hi, cache_key=cache_key) == inside
    assert is_hit(t, own=t, lo=lo, hi=hi, cache_key=cache_key)  # independent of the margin


@given(st.floats(0, 40), st.floats(-1, 1), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_rounding_noise_within_the_margin_does_not_change_acceptance(d: float, by: float, dtype: str) -> None:
    """A D that numerical noise moves by at most c sqrt(D) stays on the same side of T."""
    cache_key = key(dtype, "kl_qp")
    c = math.sqrt(cache_key.margin(0.0))
    moved = max(0.0, d + by * c * math.sqrt(d))
    for t in (moved, (d + moved) / 2):  # thresholds between the two: never a hit of an interval that ends at D
        assert not is_hit(t, own=None, lo=d, hi=math.inf, cache_key=cache_key)
        assert not is_hit(t, own=None, lo=-math.inf, hi=d, cache_key=cache_key)


@pytest.mark.parametrize(
    ("dtype", "divergence", "at", "margin"),
    [("float64", "js", 1.0, 1e-12), ("float32", "js", 0.06, 2.94e-5), ("float32", "js@50", 0.06, 2.94e-5),
     ("float32", "kl_qp", 10.0, 8.85e-4), ("bfloat16", "tv", 0.06, 0.0705), ("float16", "hellinger", 0.25, 0.0336),
     ("float32", "doubt", 0.25, 2.45e-4), ("float8_e4m3fn", "js", 0.06, math.inf), ("float64", "mine", 1.0, math.inf)],
)  # fmt: skip
def test_margins_match_the_measured_noise(dtype: str, divergence: str, at: float, margin: float) -> None:
    assert key(dtype, divergence).margin(at) == pytest.approx(margin, rel=0.02)


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_divergence_has_a_margin(divergence: str, dtype: str) -> None:
    """A new divergence needs its noise measured, as `cache_key` says; until then only its own T is a hit."""
    assert 0 < key(dtype, divergence).margin(0.1) < math.inf


def test_the_coarser_dtype_of_two_models_sets_the_margin() -> None:
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
    assert is_hit(t, own=1.0, lo=lo, hi=hi) == expected


def test_an_unmeasured_dtype_has_hits_at_the_exact_threshold_only() -> None:
    for t in (0.2, -1.0, math.inf):
        assert not is_hit(t, own=0.25, lo=-math.inf, hi=math.inf, cache_key=key("float8_e4m3fn"))
        assert is_hit(t, own=t, lo=-math.inf, hi=math.inf, cache_key=key("float8_e4m3fn"))


def test_a_rule_without_a_threshold_is_found_without_one() -> None:
    assert is_hit(None, own=None, lo=-math.inf, hi=math.inf)
    assert not is_hit(None, own=0.2, lo=-math.inf, hi=math.inf)


def test_a_row_of_the_exact_threshold_is_preferred() -> None:
    with ResultCache(None) as store:
        for t in (0.15, 0.2, 0.25):
            store.add(KEY, QUERY, t, result(str(t)))
        assert store.find(KEY, [QUERY], 0.2)[0].text == "0.2"
        assert store.find(KEY, [QUERY], 0.22)[0].text in ("0.15", "0.2", "0.25")


def test_negative_zero_is_stored_as_zero(tmp_path: Path) -> None:
    with ResultCache(tmp_path / "cache") as store:
        store.add(KEY, QUERY, -0.0, result(lo=-math.inf, hi=-0.0))
        assert store.find(KEY, [QUERY], 0.0)[0].threshold == 0.0


@pytest.mark.slow
def test_a_thousand_problems_are_all_found_at_ten_thresholds(tmp_path: Path) -> None:
    rows = [KeyedPrompt(i, f"problem {i}" * 10) for i in range(1000)]
    with ResultCache(tmp_path / "cache") as store:
        for n in range(10):
            for asked in rows:
                store.add(KEY, asked, n / 10 + 0.02, result("a text " * 40, n / 10, (n + 1) / 10))
        assert sum(len(store.find(KEY, rows, 0.03 + n / 10)) for n in range(10)) == 10_000


def test_equal_keys_have_equal_hashes_and_others_do_not() -> None:
    assert key().hash == key().hash
    other = KEY.setting.under("fsd")
    changed = [dataclasses.replace(KEY, **change) for change in ({"seed": 0}, {"stop": ["a"]}, {"setting": other})]
    assert len({k.hash for k in (KEY, *changed)}) == 4
