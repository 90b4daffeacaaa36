"""A result's interval of thresholds under every score: inside it the text is the same, token for token."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from fsd_calib.testing.promises import HOW, Bench, intervals_hold, lossless_below_zero
from fsd_decoding.rules import rule_named
from support.models.tiny_pair import ragged_prompts, tiny_decoder

SCORES = (
    "gated-js@0.6", "margin", "margin@4", "relaxed", "fly@1", "fly@2@2", "cactus", "accept-threshold",
    "accept-threshold@0.7", "typical", "posterior",
)  # fmt: skip
NEW = 14
ROUNDING = 1e-9


@cache
def bench() -> Bench:
    return Bench(tiny_decoder(), ragged_prompts(200), NEW)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("score", SCORES)
def test_thresholds_inside_the_interval_give_the_same_text(score: str, how: str) -> None:
    intervals_hold(bench(), {**HOW[how], "score": score}, bench().thresholds(score, HOW[how]))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("score", SCORES)
def test_below_zero_every_score_is_lossless(score: str, how: str) -> None:
    lossless = rule_named(HOW[how]["rule"]).lossless
    lossless_below_zero(bench(), {**HOW[how], "score": score}, lossless)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("score", SCORES)
def test_results_do_not_depend_on_the_batch(score: str, how: str) -> None:
    """Windows of later tokens reach no further than a row's own draft, however long its neighbours' are."""
    prompts, lengths, decoder = ragged_prompts(24), [1 + i % 6 for i in range(24)], bench().decoder
    given = {"score": score, "threshold": 0.3, **HOW[how]}
    together = decoder.generate(prompts, NEW, draft_length=lengths, batch_size=24, **given)
    alone = [
        decoder.generate([prompt], NEW, draft_length=length, ids=[i], **given)[0]
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    for one, other in zip(together, alone, strict=True):
        assert one.interval == pytest.approx(other.interval, abs=ROUNDING)
        assert dataclasses.replace(one, interval=other.interval) == other
