"""The parts of a profile about time: speeds, the costs of a round, and the effort of the calibration."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fsd_decoding.profile.parts import Amount, Confidence, Count, Natural, Part


def _check_order(interval: tuple[float, float]) -> tuple[float, float]:
    if interval[0] > interval[1]:
        raise ValueError(f"[{interval[0]}, {interval[1]}] is not an interval; it must be [low, high]")
    return interval


Interval = Annotated[tuple[Amount, Amount], AfterValidator(_check_order)]


class SpeedIntervals(Part):
    """Confidence intervals [low, high] of each speed, in its unit, and of the ratios of the chosen one to `sd` and to
    the target alone. Ratios are of the same problems, so a slow machine changes them less than the speeds."""

    target: Interval
    sd: Interval
    chosen: Interval
    over_sd: Interval
    over_target: Interval
    confidence: Confidence


class SpeedFigures(Part):
    """Speeds of the target alone, of `sd` at its own best draft length and of the chosen configuration, measured in
    turn on the same `timed` problems. `timed` 0: nothing was timed, and these are forecasts of the cost model."""

    target: Amount
    sd: Amount
    chosen: Amount
    timed: Count
    intervals: SpeedIntervals | None = None

    @model_validator(mode="after")
    def _a_forecast_has_no_intervals(self) -> Self:
        if not self.timed and self.intervals is not None:
            raise ValueError("timed is 0, but intervals are given; speeds that are only forecast have none")
        return self


class Forecasts(Part):
    """The same three speeds by the cost model alone, timed or not, as the curve has them for these settings."""

    target: Amount
    sd: Amount
    chosen: Amount


class Speed(SpeedFigures):
    """Speeds with `batch` prompts at a time (--serve-batch). `wanted`: the speed that --min-speed requested.

    part: the part whose problems were timed, or decoded if speeds are forecast.
    processes: number of fresh processes, each of which timed everything; 0: only the calibration's own process did, so
        intervals hold within it.
    load, cores: the machine's load average over the minute before timing, and the number of available cores.
    single: the same settings with one prompt at a time; None: not timed.
    forecast: None if the profile has an older schema.
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
        """Whether other processes may have slowed down what was timed."""
        return self.load is not None and self.cores is not None and self.load > self.cores


class CostInfo(Part):
    """Seconds of a round of `batch` rows that drafts d tokens: d * draft_step + verify + (d + 1) * position."""

    draft_step: Amount
    verify: Amount
    position: Amount
    batch: Natural


class Work(Part):
    """Numbers of decodings of a problem, made or taken from the cache, and of the tokens they emitted."""

    decoded: Count = 0
    decoded_tokens: Count = 0
    reused: Count = 0
    reused_tokens: Count = 0

    def __add__(self, other: Work) -> Work:
        return Work(**{name: getattr(self, name) + getattr(other, name) for name in Work.model_fields})


class Effort(Part):
    """What the calibration decoded. `trials`: number of configurations that the search evaluated."""

    baseline: Work
    search: Work
    certification: Work
    trials: Count

    @property
    def total(self) -> Work:
        return self.baseline + self.search + self.certification
