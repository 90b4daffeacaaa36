"""The parts of a profile that took time: speeds, what a round costs, and how much decoding the calibration was."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fsd_decoding.profile.parts import Amount, Confidence, Count, Natural, Part


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


class SpeedFigures(Part):
    """Of target alone, of `sd` at its own best draft length and of the chosen configuration, on the same `timed`
    problems in turn. `timed` 0: nothing was, and these are the cost model's forecasts."""

    target: Amount
    sd: Amount
    chosen: Amount
    timed: Count
    intervals: SpeedIntervals | None = None

    @model_validator(mode="after")
    def _a_forecast_has_no_intervals(self) -> Self:
        if not self.timed and self.intervals is not None:
            raise ValueError("timed is 0, but there are intervals; what is only forecast has none")
        return self


class Forecasts(Part):
    """The same three by the cost model alone, timed or not: the curve says the same of these settings."""

    target: Amount
    sd: Amount
    chosen: Amount


class Speed(SpeedFigures):
    """With `batch` prompts at a time (--serve-batch); `wanted` is what --min-speed asked for.

    part: whose problems were timed, or decoded where speeds are forecast.
    processes: fresh ones, in each of which all was timed; 0: the calibration's own was the only one, so that intervals
        say what holds within it.
    load, cores: the machine's load, averaged over the minute before timing, and the cores that there were for it.
    single: the same settings with one prompt at a time; None: not timed.
    forecast: None where the profile is of an older schema.
    """

    batch: Natural
    wanted: Annotated[float, Field(gt=0)] | None = None
    unit: str = "tokens/s"
    part: Literal["tuning", "certification"] = "tuning"
    processes: Count = 0
    load: Amount | None = None
    cores: Natural | None = None
    single: SpeedFigures | None = None
    forecast: Forecasts | None = None

    @property
    def busy(self) -> bool:
        """Whether others may have held up what was timed."""
        return self.load is not None and self.cores is not None and self.load > self.cores


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
