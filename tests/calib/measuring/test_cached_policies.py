"""The cache where a policy moves T: its hits and misses. Tiny models, float64."""

from __future__ import annotations

import math
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.engines.cache_key import CacheKey
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.tasks import Task
from fsd_decoding.adaptive import EntropyScaled, Schedule
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.profile.setting import Setting
from fsd_decoding.sampling import Sampling
from support.calibration.cached_results import QUERY, key, result
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related, tiny_decoder
from support.models.tiny_task import tiny_task

LOOSENING = Schedule(0.25, 1.0, over=8)
UNSURE = EntropyScaled(1.0, -2.0)
SHAPES = [None, LOOSENING, UNSURE]
TASK = cast(Task, tiny_task(24))


def setting(policy: ScalePolicy | None, threshold: float, rule: str = "fsd-coupled") -> Setting:
    return Setting(rule, "js", 4, threshold, None if policy is None else PolicyInfo.of(policy.identity or ""))


def decode(store: ResultCache, decoder: SpeculativeDecoder | None = None, batch_size: int = 8) -> CachedDecoder:
    return CachedDecoder(OwnEngine(decoder or tiny_decoder(), TASK), TASK, store, batch_size)


def sampled() -> SpeculativeDecoder:
    return SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), sampling=Sampling(0.9))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "decoder"), [("fsd-coupled", tiny_decoder()), ("fsd", sampled()), ("fsd-sd", sampled())]
)
def test_cached_results_do_not_change_decodings(rule: str, decoder: SpeculativeDecoder) -> None:
    """Policies and thresholds in turn with one growing cache give the same decodings as without a cache."""
    reused = 0
    with ResultCache(None) as store:
        for t in (0.2, 0.24, 0.6, -1.0, 0.21):
            for policy in SHAPES:
                cached, fuzzy = decode(store, decoder), setting(policy, t, rule)
                found = cached(fuzzy, TASK.problems)
                with ResultCache(None) as empty:
                    assert found == decode(empty, decoder, batch_size=5)(fuzzy, TASK.problems)
                reused += cached.reused
    assert reused >= 2 * 3 * 12  # at least half of those at the two close thresholds


@pytest.mark.slow
def test_a_text_is_a_hit_within_its_interval_but_not_near_its_ends() -> None:
    threshold = 0.3
    results = tiny_decoder().generate(
        [p.prompt for p in TASK.problems], 12, rule="fsd-coupled", threshold=LOOSENING.at(threshold), draft_length=4,
        ids=[p.id for p in TASK.problems],
    )  # fmt: skip
    ends = [(problem, *r.interval) for problem, r in zip(TASK.problems, results, strict=True) if r.interval[1] < 9]
    assert len(ends) > 12
    for problem, lo, hi in ends:
        with ResultCache(None) as store:
            cached = decode(store)
            cached(setting(LOOSENING, threshold), [problem])
            for t, anew in ((hi, True), (math.nextafter(hi, 0), True), ((max(lo, 0.0) + hi) / 2, False)):
                before = cached.decoded
                cached(setting(LOOSENING, t), [problem])
                assert cached.decoded == before + anew


def test_policies_share_no_texts_at_equal_thresholds() -> None:
    with ResultCache(None) as store:
        cached, drafted = decode(store), []
        for count, policy in enumerate(SHAPES, 1):
            drafted.append([one.drafted for (one,) in cached(setting(policy, 0.4), TASK.problems)])
            assert cached.decoded == 24 * count
        assert len({tuple(d) for d in drafted}) == 3
        assert len({cached.key(setting(policy, 0.4)).hash for policy in SHAPES}) == 3


def test_keys_name_a_policy_only_where_it_moves_t() -> None:
    with ResultCache(None) as store:
        cached = decode(store)
        assert cached.key(setting(None, 0.4)).setting.policy is None
        assert cached.key(setting(LOOSENING, 0.4)).setting.policy is not None
        lossless = setting(LOOSENING, 0.4).under("coupled")
        assert cached.key(lossless) == cached.key(Setting("coupled", "js", 4))


def of_shape(policy: ScalePolicy, dtype: str) -> CacheKey:
    return key(dtype, setting=setting(policy, 0.0).arm)


def is_hit(cache_key: CacheKey, t: float, lo: float, hi: float) -> bool:
    with ResultCache(None) as store:
        store.add(cache_key, QUERY, None, result(lo=lo, hi=hi))
        return bool(store.find(cache_key, [QUERY], t))


@given(st.floats(0, 0.69), st.floats(-1, 1), st.floats(0.25, 1), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_rounding_noise_within_the_margin_does_not_change_acceptance(d: float, by: float, m: float, dtype: str) -> None:
    """As in `test_result_cache.py` for a constant T; here for D over any scale of the policy."""
    c = math.sqrt(key(dtype).margin(0.0))
    moved = max(0.0, d + by * c * math.sqrt(d))
    cache_key, d, moved = of_shape(LOOSENING, dtype), d / m, moved / m
    for t in (moved, (d + moved) / 2):  # thresholds between the two: never a hit of an interval that ends at D
        assert not is_hit(cache_key, t, lo=d, hi=math.inf)
        assert not is_hit(cache_key, t, lo=-math.inf, hi=d)


def test_the_margin_grows_with_the_smallest_scale_and_its_rounding() -> None:
    c = math.sqrt(key("float32").margin(0.0))
    small = math.exp(-2.0)
    expected = c * math.sqrt(0.1 / small) + c**2 / small + 0.1 * 2.0 * c
    assert of_shape(UNSURE, "float32").margin(0.1) == pytest.approx(expected)
    assert of_shape(LOOSENING, "float32").margin(0.0) == pytest.approx(4 * key("float32").margin(0.0))
    assert of_shape(LOOSENING, "float32").margin(0.1) == pytest.approx(2 * key("float32").margin(0.1), rel=1e-3)
