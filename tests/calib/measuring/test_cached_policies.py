"""The cache of decodings where a policy moves T: what it answers, and what it must not. Tiny models, float64."""

from __future__ import annotations

import dataclasses
import math
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.measuring.cache_key import CacheKey
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.tasks import Task
from fsd_decoding.adaptive import EntropyScaled, Schedule
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.sampling import Sampling
from support.cached_results import QUERY, key, result
from support.tiny_models import word_tokenizer
from support.tiny_pair import related, tiny_decoder
from support.tiny_task import tiny_task

LOOSENING = Schedule(0.25, 1.0, over=8)
UNSURE = EntropyScaled(1.0, -2.0)
SHAPES = [None, LOOSENING, UNSURE]
TASK = cast(Task, tiny_task(24))


def configuration(policy: ScalePolicy | None, threshold: float, rule: str = "fsd-coupled") -> Configuration:
    return Configuration(rule, "js", 4, threshold, None if policy is None else policy.identity)


def decode(store: ResultCache, decoder: SpeculativeDecoder | None = None, batch_size: int = 8) -> CachedDecoder:
    return CachedDecoder(decoder or tiny_decoder(), TASK, store, batch_size)


def sampled() -> SpeculativeDecoder:
    return SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), sampling=Sampling(0.9))


@pytest.mark.parametrize(
    ("rule", "decoder"), [("fsd-coupled", tiny_decoder()), ("fsd", sampled()), ("fsd-sd", sampled())]
)
def test_what_was_cached_before_changes_nothing(rule: str, decoder: SpeculativeDecoder) -> None:
    """Shapes and thresholds in turn with one cache that holds more and more, against decoding each anew."""
    reused = 0
    with ResultCache(None) as store:
        for t in (0.2, 0.24, 0.6, -1.0, 0.21):
            for policy in SHAPES:
                cached, asked = decode(store, decoder), configuration(policy, t, rule)
                found = cached(asked, TASK.problems)
                with ResultCache(None) as empty:
                    assert found == decode(empty, decoder, batch_size=5)(asked, TASK.problems)
                reused += cached.reused
    assert reused >= 2 * 3 * 12  # of the closer two, half at least


def test_a_text_answers_within_its_interval_and_is_decoded_anew_at_its_ends() -> None:
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
            cached(configuration(LOOSENING, threshold), [problem])
            for t, anew in ((hi, True), (math.nextafter(hi, 0), True), ((max(lo, 0.0) + hi) / 2, False)):
                before = cached.decoded
                cached(configuration(LOOSENING, t), [problem])
                assert cached.decoded == before + anew


def test_shapes_share_nothing_at_equal_thresholds() -> None:
    with ResultCache(None) as store:
        cached, drafted = decode(store), []
        for count, policy in enumerate(SHAPES, 1):
            drafted.append([one.drafted for (one,) in cached(configuration(policy, 0.4), TASK.problems)])
            assert cached.decoded == 24 * count
        assert len({tuple(d) for d in drafted}) == 3
        assert len({cached.key(configuration(policy, 0.4)).hash for policy in SHAPES}) == 3


def test_the_lossless_rule_and_constant_thresholds_have_the_keys_they_had() -> None:
    """A cache of before holds; `scaled_by` is not there where nothing scales."""
    with ResultCache(None) as store:
        cached = decode(store)
        assert "scaled_by" not in cached.key(configuration(None, 0.4)).json
        assert "scaled_by" in cached.key(configuration(LOOSENING, 0.4)).json
        lossless = configuration(LOOSENING, 0.4).under("coupled")
        assert cached.key(lossless) == cached.key(Configuration("coupled", "js", 4))


def of_shape(policy: ScalePolicy, dtype: str) -> CacheKey:
    return dataclasses.replace(key(dtype), divergence={"name": "js", "scaled_by": policy.identity})


def answered(asking: CacheKey, t: float, lo: float, hi: float) -> bool:
    with ResultCache(None) as store:
        store.add(asking, QUERY, None, result(lo=lo, hi=hi))
        return bool(store.find(asking, [QUERY], t))


@given(st.floats(0, 0.69), st.floats(-1, 1), st.floats(0.25, 1), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_a_divergence_that_moves_by_its_rounding_stays_on_its_side(d: float, by: float, m: float, dtype: str) -> None:
    """As `test_store.py` has it where T stays as it is, of D over any scale that the policy may give."""
    c = math.sqrt(key(dtype).margin(0.0))
    moved = max(0.0, d + by * c * math.sqrt(d))
    asking, d, moved = of_shape(LOOSENING, dtype), d / m, moved / m
    for t in (moved, (d + moved) / 2):  # thresholds between the two: never answered by D as an end
        assert not answered(asking, t, lo=d, hi=math.inf)
        assert not answered(asking, t, lo=-math.inf, hi=d)


def test_the_margin_is_wider_by_the_smallest_scale_and_by_what_rounding_does_to_it() -> None:
    c = math.sqrt(key("float32").margin(0.0))
    small = math.exp(-2.0)
    expected = c * math.sqrt(0.1 / small) + c**2 / small + 0.1 * 2.0 * c
    assert of_shape(UNSURE, "float32").margin(0.1) == pytest.approx(expected)
    assert of_shape(LOOSENING, "float32").margin(0.0) == pytest.approx(4 * key("float32").margin(0.0))
    assert of_shape(LOOSENING, "float32").margin(0.1) == pytest.approx(2 * key("float32").margin(0.1), rel=1e-3)
