"""A result's interval of thresholds: inside it the result does not change, at its ends one decision does.

Only the decoder's public interface is used. Thresholds may differ by prompt, so one call decodes every problem at a
threshold of its own. Models are in float64, where the D of another batch may differ by rounding of about 1e-16.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import product
from random import Random

import pytest

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from support.models.tiny_pair import ragged_prompts, tiny_decoder

PROBLEMS, DRAWS, NEW, LENGTH = 100, 50, 14, 4
ROUNDING = 1e-12
CASES = list(product(("fsd", "fsd-sd", "fsd-coupled"), (0.0, 0.9)))


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder()


class Run:
    """A hundred problems under one rule; `base` holds their results at one threshold each."""

    def __init__(self, decoder: SpeculativeDecoder, rule: str, temperature: float) -> None:
        self.rule = rule
        self._decoder, self._temperature = decoder, temperature
        self.prompts = ragged_prompts(PROBLEMS)
        self.thresholds = [0.02 + 0.004 * i for i in range(PROBLEMS)]
        self.base = self.at(self.thresholds)

    def at(self, thresholds: list[float]) -> list[Result]:
        return self._decoder.generate(
            self.prompts, NEW, self._temperature, rule=self.rule, threshold=thresholds, draft_length=LENGTH,
            batch_size=PROBLEMS,
        )  # fmt: skip

    def alone(self, problem: int, threshold: float) -> Result:
        return self._decoder.generate(
            self.prompts[problem : problem + 1], NEW, self._temperature, rule=self.rule, threshold=threshold,
            draft_length=LENGTH, ids=[problem],
        )[0]  # fmt: skip


@pytest.fixture(scope="module", params=CASES, ids=[f"{rule} at {t}" for rule, t in CASES])
def run(request: pytest.FixtureRequest, decoder: SpeculativeDecoder) -> Run:
    return Run(decoder, *request.param)


def without_interval(result: Result) -> Result:
    """The result without its interval."""
    return dataclasses.replace(result, interval=(0.0, 0.0))


@pytest.mark.thinned(every=3)
def test_texts_end_within_drafts(run: Run) -> None:
    """By EOS and by length, both within a draft: tokens after the end were judged too, but must have no effect."""
    cut = [r.finish_reason for r in run.base if r.emitted == r.accepted + r.rounds - 1]
    assert min(cut.count("eos"), cut.count("length")) >= 8
    bounded = [[math.isfinite(end) for end in r.interval] for r in run.base]
    assert min(sum(ends) for ends in zip(*bounded, strict=True)) >= 40


@pytest.mark.slow
def test_thresholds_inside_the_interval_give_the_same_result(run: Run) -> None:
    """50 random thresholds from every problem's interval reproduce its result and its interval."""
    rng = Random(1)
    for _ in range(DRAWS):
        for was, now in zip(run.base, run.at([inside(r, rng) for r in run.base]), strict=True):
            assert without_interval(now) == without_interval(was)
            assert now.interval == pytest.approx(was.interval, abs=ROUNDING)


def inside(result: Result, rng: Random) -> float:
    """A random threshold in [lo, hi), unbounded sides included, kept away from the ends by a rounding error."""
    lo, hi = max(result.interval[0], -0.1), min(result.interval[1], 0.8)
    assert hi - lo > 100 * ROUNDING
    return rng.uniform(lo + ROUNDING, hi - ROUNDING)


@pytest.mark.thinned(every=12)
@pytest.mark.parametrize("end", [0, 1], ids=["below lo", "from hi"])
def test_outside_the_interval_the_bounding_decision_flips(run: Run, end: int) -> None:
    """Up to that decision nothing changes; then a D that was accepted is the smallest rejected one, or the reverse.

    So the new interval begins where the old one ends. Where D decides, x is not what the lossless rule would emit, and
    the result differs. Only under `fsd` may x equal y, and then different rounds may happen to give an equal result.
    """
    step = (-1, 1)[end] * ROUNDING * 10
    outside = run.at([r.interval[end] + step for r in run.base])
    for was, now in zip(run.base, outside, strict=True):
        bound = was.interval[end]
        if math.isinf(bound):
            assert without_interval(now) == without_interval(was)
            continue
        assert now.interval[1 - end] == pytest.approx(bound, abs=ROUNDING)
        assert was.interval[0] < was.interval[1]
        if run.rule != "fsd":
            assert without_interval(now) != without_interval(was)


@pytest.mark.thinned(every=6)
def test_the_lower_end_is_inside_and_the_upper_is_not(run: Run) -> None:
    """[lo, hi) holds to the last bit, where only the threshold differs between two decodings."""
    finite = [0, 0]
    for problem in range(0, PROBLEMS, 5):
        was = run.alone(problem, run.thresholds[problem])
        lo, hi = was.interval
        if math.isfinite(lo):
            assert run.alone(problem, lo) == was
        if math.isfinite(hi):
            assert run.alone(problem, hi).interval[0] == hi
        finite = [n + math.isfinite(end) for n, end in zip(finite, was.interval, strict=True)]
    assert min(finite) >= 5
