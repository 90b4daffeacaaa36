"""The parts of a profile that took time: speeds, what a round costs, and how much decoding the calibration was.

Knows seconds and counts, and which ones contradict each other. Knows no accuracy.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from fsd_decoding.profile_parts import Amount, Confidence, Count, Natural, Part


def _ordered(interval: tuple[float, float]) -> tuple[float, float]:
    if interval[0] > interval[1]:
        raise ValueError(f"[{interval[0]}, {interval[1]}] is no interval: it must be [low, high]")
    return interval


Interval = Annotated[tuple[Amount, Amount], AfterValidator(_ordered)]


class SpeedIntervals(Part):
    """[low, high] of each speed, in its unit, and of the chosen one over `sd` and over the target alone: ratios of
    the same problems, which a slow machine changes less than the speeds themselves."""

    target: Interval
    sd: Interval
    chosen: Interval
    over_sd: Interval
    over_target: Interval
    confidence: Confidence


class Speed(Part):
    """Of target alone, of `sd` at its own best draft length and of the chosen configuration, with `batch` prompts at
    a time (--serve-batch), on the same `timed` problems in turn; `wanted` is what --min-speed asked for."""

    target: Amount
    sd: Amount
    chosen: Amount
    batch: Natural
    timed: Natural
    wanted: Annotated[float, Field(gt=0)] | None = None
    unit: str = "tokens/s"
    intervals: SpeedIntervals | None = None


class CostInfo(Part):
    """Seconds of a round of `batch` rows that drafts d tokens: d * draft_step + verify + (d + 1) * position."""

    draft_step: Amount
    verify: Amount
    position: Amount
    batch: Natural


class Work(Part):
    """Decodings of a problem, made or found in the cache, and the tokens they emitted."""

    decoded: Count = 0
    decoded_tokens: Count = 0
    reused: Count = 0
    reused_tokens: Count = 0

    def __add__(self, other: Work) -> Work:
        return Work(**{name: getattr(self, name) + getattr(other, name) for name in Work.model_fields})


class Effort(Part):
    """What the calibration decoded. `trials`: configurations that the search asked for."""

    baseline: Work
    search: Work
    certification: Work
    trials: Count

    @property
    def total(self) -> Work:
        return self.baseline + self.search + self.certification
