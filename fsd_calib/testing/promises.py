"""What the checks of an interface share: how a broken promise is said, and the bundled pair that they decode with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor

from fsd_calib.tasks.registry import load_task
from fsd_data import pair_paths
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_log import Recorder
from fsd_decoding.requests import Prompt

_TEXTS, _TOKENS = 16, 40
BELOW_ZERO = -1e-9


def promise(holds: bool, broken: str) -> None:
    """Raises AssertionError where something does not hold. broken: that, in words."""
    if not holds:
        raise AssertionError(broken)


def promise_equal(found: Tensor, wanted: Tensor, broken: str, within: float = 0.0) -> None:
    """Raises AssertionError where tensors differ by more than a share of their values, or one alone is infinite."""
    close = torch.isclose(found.double(), wanted.double(), rtol=within, atol=within)
    if not close.all():
        place = tuple((~close).nonzero()[0].tolist())
        raise AssertionError(f"{broken}: at {place} it is {found[place].item():g}, and {wanted[place].item():g} there")


HOW: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"rule": "fsd-coupled"},
    "sampled": {"rule": "fsd-sd", "temperature": 0.9},
}
"""Settings that a score or a stop policy is tried with."""


@dataclass(frozen=True)
class Bench:
    """Prompts, and a decoder to try settings with.

    Attributes:
        tokens: New tokens of a text.
        length: Tokens drafted in a round.
    """

    decoder: SpeculativeDecoder
    prompts: Sequence[Prompt]
    tokens: int = _TOKENS
    length: int = 5

    def decoded(self, setting: Mapping[str, Any], **more: Any) -> list[Result]:
        """Decodes all prompts at once under the setting, with `more` in its place."""
        given = {"draft_length": self.length, "batch_size": len(self.prompts), **setting, **more}
        return self.decoder.generate(self.prompts, self.tokens, **given)

    def thresholds(self, score: str, setting: Mapping[str, Any]) -> list[float]:
        """Returns a T for each prompt near the scores of tokens that the lossless rule drafts.

        Raises:
            AssertionError: No score of theirs is finite and above 0, so that no T could be tried.
        """
        recorder = Recorder([score])
        self.decoded(setting, score=score, threshold=BELOW_ZERO, observer=recorder)
        finite = sorted(value for value in recorder.columns()[score].tolist() if 0 < value < math.inf)
        promise(
            bool(finite), "of all tokens that the bundled pair drafts none has a finite score above 0: no T decides"
        )
        rng = Random(2)
        return [rng.choice(finite) * rng.choice((0.3, 1.0, 1.0)) for _ in self.prompts]


@cache
def bundled() -> Bench:
    """The bundled pair, on problems of its task."""
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths(), device="cpu")
    task = load_task("arithmetic", limit=_TEXTS, tokenizer=decoder.tokenizer)
    return Bench(decoder, [problem.prompt for problem in task.problems])


def intervals_hold(bench: Bench, setting: Mapping[str, Any], thresholds: Sequence[float]) -> None:
    """Every T inside a text's interval gives the same text, in as many rounds, with the same interval."""
    rng, base = Random(3), bench.decoded(setting, threshold=thresholds)
    for result, threshold in zip(base, thresholds, strict=True):
        lo, hi = result.interval
        promise(lo <= threshold < hi, f"a text at T = {threshold:g} has the interval [{lo:g}, {hi:g}), which lacks it")
    ends = sum(math.isfinite(end) for result in base for end in result.interval)
    promise(ends > 0, "T decides on no token of these texts: all their intervals are unbounded")
    inside = [_inside(result.interval, rng) for result in base]
    for was, now, at, threshold in zip(base, bench.decoded(setting, threshold=inside), inside, thresholds, strict=True):
        lo, hi = was.interval
        same = replace(now, interval=was.interval) == was and _same_ends(now.interval, was.interval)
        promise(
            same, f"a text at T = {threshold:g} has the interval [{lo:g}, {hi:g}), and at {at:g} inside it is another "
            f"one: {now.text!r:.60} in {now.rounds} rounds, not {was.text!r:.60} in {was.rounds}",
        )  # fmt: skip


def lossless_below_zero(bench: Bench, setting: Mapping[str, Any], lossless: str, rounds: bool = True) -> None:
    """At T < 0 texts are those of a lossless rule, in as many rounds unless that does not matter."""
    exact = bench.decoded({**setting, "score": None}, rule=lossless)
    for place, (was, now) in enumerate(zip(exact, bench.decoded(setting, threshold=BELOW_ZERO), strict=True)):
        promise(
            now.tokens == was.tokens and (now.rounds == was.rounds or not rounds),
            f"at T < 0 text {place} is {now.text!r:.60} in {now.rounds} rounds, and under the lossless rule "
            f"{lossless!r} {was.text!r:.60} in {was.rounds}",
        )


def _inside(interval: tuple[float, float], rng: Random) -> float:
    lo, hi = interval
    lo, hi = max(lo, -0.5), min(hi, max(lo, 0.0) + 5.0)
    return rng.uniform(lo + 1e-3 * (hi - lo), hi - 1e-3 * (hi - lo))


def _same_ends(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return all(a == b or abs(a - b) < 1e-9 for a, b in zip(one, other, strict=True))
