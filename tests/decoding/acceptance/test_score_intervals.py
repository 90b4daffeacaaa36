"""A result's interval of thresholds under every score: inside it the text is the same, token for token."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from random import Random
from typing import Any

import pytest

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_log import Recorder
from support.models.tiny_pair import ragged_prompts, tiny_decoder

SCORES = (
    "gated-js@0.6", "margin", "margin@4", "relaxed", "fly@1", "fly@2@2", "cactus", "accept-threshold",
    "accept-threshold@0.7", "typical", "posterior",
)  # fmt: skip
TEXTS, NEW, LENGTH = 200, 14, 5
ROUNDING = 1e-9
DECODINGS: dict[str, dict[str, Any]] = {
    "greedy": {"rule": "fsd-coupled"}, "sampled": {"rule": "fsd-sd", "temperature": 0.9},
}  # fmt: skip


@cache
def decoder() -> SpeculativeDecoder:
    return tiny_decoder()


def decoded(score: str, how: str, thresholds: list[float], **more: Any) -> list[Result]:
    return decoder().generate(
        ragged_prompts(TEXTS), NEW, divergence=score, threshold=thresholds, draft_length=LENGTH, batch_size=TEXTS,
        **DECODINGS[how], **more,
    )  # fmt: skip


@pytest.mark.parametrize("how", DECODINGS)
@pytest.mark.parametrize("score", SCORES)
def test_thresholds_inside_the_interval_give_the_same_text(score: str, how: str) -> None:
    recorder = Recorder([score])
    decoded(score, how, [-1e-9] * TEXTS, observer=recorder)
    finite = sorted(value for value in recorder.columns()[score].tolist() if 0 < value < math.inf)
    rng = Random(2)
    thresholds = [rng.choice(finite) * rng.choice((0.3, 1.0, 1.0)) for _ in range(TEXTS)]
    base = decoded(score, how, thresholds)
    bounded = [[math.isfinite(end) for end in result.interval] for result in base]
    assert min(sum(ends) for ends in zip(*bounded, strict=True)) > TEXTS / 10
    again = decoded(score, how, [inside(result, rng) for result in base])
    for was, now in zip(base, again, strict=True):
        assert dataclasses.replace(now, interval=was.interval) == was
        assert now.interval == pytest.approx(was.interval, abs=ROUNDING)


def inside(result: Result, rng: Random) -> float:
    lo, hi = result.interval
    lo, hi = max(lo, -0.5), min(hi, max(lo, 0.0) + 5.0)
    return rng.uniform(lo + 1e-3 * (hi - lo), hi - 1e-3 * (hi - lo))


@pytest.mark.parametrize("how", DECODINGS)
@pytest.mark.parametrize("score", SCORES)
def test_below_zero_every_score_is_lossless(score: str, how: str) -> None:
    exact = decoder().generate(
        ragged_prompts(TEXTS), NEW, draft_length=LENGTH, batch_size=TEXTS, **DECODINGS[how], threshold=-1.0
    )
    for was, now in zip(exact, decoded(score, how, [-1e-9] * TEXTS), strict=True):
        assert (now.tokens, now.rounds, now.accepted) == (was.tokens, was.rounds, was.accepted)


@pytest.mark.parametrize("how", DECODINGS)
@pytest.mark.parametrize("score", SCORES)
def test_results_do_not_depend_on_the_batch(score: str, how: str) -> None:
    """Windows of later tokens reach no further than a row's own draft, however long its neighbours' are."""
    prompts, lengths = ragged_prompts(24), [1 + i % 6 for i in range(24)]
    given = {"divergence": score, "threshold": 0.3, **DECODINGS[how]}
    together = decoder().generate(prompts, NEW, draft_length=lengths, batch_size=24, **given)
    alone = [
        decoder().generate([prompt], NEW, draft_length=length, ids=[i], **given)[0]
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    for one, other in zip(together, alone, strict=True):
        assert one.interval == pytest.approx(other.interval, abs=ROUNDING)
        assert dataclasses.replace(one, interval=other.interval) == other
