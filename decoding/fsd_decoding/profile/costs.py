"""The parts of a profile about time: speeds, the costs of a round, and the effort of the calibration."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fsd_decoding.profile.parts import Amount, Confidence, Count, Natural, Part, Positive


def _check_order(interval: tuple[float, float]) -> tuple[float, float]:
    if interval[0] > interval[1]:
        raise ValueError(f"[{interval[0]}, {interval[1]}] is not an interval; it must be [low, high]")
    return interval


Interval = Annotated[tuple[Amount, Amount], AfterValidator(_check_order)]


class SpeedIntervals(Part):
    """Confidence intervals [low, high] of each speed, in its unit, and of the ratios of the chosen one to `sd` and to
    the target alone. Ratios are of the same problems, so a slow machine changes them less than the speeds."""

    target: Interval
    """Of the speed of the target alone."""
    sd: Interval
    """Of the speed of `sd`."""
    chosen: Interval
    """Of the speed of the chosen configuration."""
    over_sd: Interval
    """Of the chosen configuration's speed divided by that of `sd`."""
    over_target: Interval
    """Of the chosen configuration's speed divided by that of the target alone."""
    confidence: Confidence
    """Confidence of each interval."""


class SpeedRatios(Part):
    """How many times as fast the chosen configuration is: the centre of the ratios of single problems (with several
    streams: groups of problems), which both configurations decoded one after the other. Stalls of the machine change it
    less than they change speeds, so it is not exactly a speed divided by another."""

    over_sd: Positive
    """As `sd`."""
    over_target: Positive
    """As the target alone."""


class _EachOfThree(Part):
    target: Positive
    """Of the target alone."""
    sd: Positive
    """Of `sd` at its own best draft length."""
    chosen: Positive
    """Of the chosen configuration."""


class AnswerSeconds(_EachOfThree):
    """Seconds that a stream takes for each answer, from the same timing as the speeds. What writes longer texts may
    make more tokens a second and still take longer."""


class SpeedFigures(_EachOfThree):
    """Speeds of the target alone, of `sd` at its own best draft length and of the chosen configuration, measured in
    turn on the same problems; the target has fewer of them. A speed is that of a typical problem: the centre of the
    problems' own, which single stalls do not change."""

    timed: Count
    """Number of timed problems. 0: nothing was timed, and these are forecasts of the cost model."""
    intervals: SpeedIntervals | None = None
    """Their confidence intervals. null: forecasts have none, nor has what was timed on too few problems."""
    ratios: SpeedRatios | None = None
    """Ratios by pairs of decodings. null: forecasts have none but those of the speeds."""
    clock: Literal["wall", "cpu"] = "wall"
    """What ratios were timed by: wall-clock seconds, or processor seconds, where the wall's were much noisier. Speeds
    are by the wall's clock."""
    answer: AnswerSeconds | None = None
    """How long answers take. null: nothing was timed."""

    @model_validator(mode="after")
    def _a_forecast_has_no_clock(self) -> Self:
        for name in ("intervals", "answer"):
            if not self.timed and getattr(self, name) is not None:
                raise ValueError(f"timed is 0, but {name} is given; speeds that are only forecast have none")
        return self

    @property
    def over_sd(self) -> float:
        """How many times as fast as `sd` the chosen configuration is."""
        return self.chosen / self.sd if self.ratios is None else self.ratios.over_sd

    @property
    def over_target(self) -> float:
        """How many times as fast as the target alone the chosen configuration is."""
        return self.chosen / self.target if self.ratios is None else self.ratios.over_target


class Forecasts(_EachOfThree):
    """The same three speeds by the cost model alone, timed or not, as the curve has them for these settings."""


class Speed(SpeedFigures):
    """Speeds with `batch` prompts at a time."""

    batch: Natural
    """Number of prompts decoded at a time (--serve-batch)."""
    wanted: Annotated[float, Field(gt=0)] | None = None
    """The speed that --min-speed requested. null: none."""
    unit: str = "tokens/s"
    """The unit of all speeds."""
    part: Literal["tuning", "certification"] = "tuning"
    """The part whose problems were timed, or decoded if speeds are forecast."""
    processes: Count = 0
    """Number of fresh processes, each of which timed everything. 0: only the calibration's own process did, so
    intervals hold within it."""
    load: Amount | None = None
    """The machine's load average over the minute before timing. null: not known."""
    cores: Natural | None = None
    """Number of available cores. null: not known."""
    threads: Natural | None = None
    """Number of CPU threads of the process that timed. null: the engine has its own, or no CPU decoded."""
    single: SpeedFigures | None = None
    """Speeds of the same settings with one prompt at a time. null: not timed."""
    forecast: Forecasts
    """What the cost model forecast."""

    @property
    def is_below_wanted(self) -> bool:
        """Whether the chosen configuration is shown not to reach the requested speed, if there is one."""
        highest = self.chosen if self.intervals is None else self.intervals.chosen[1]
        return self.wanted is not None and highest < self.wanted

    @property
    def busy(self) -> bool:
        """Whether other processes may have slowed down what was timed."""
        return self.load is not None and self.cores is not None and self.load > self.cores


Rounds = Literal["off", "capture", "on"]
"""How rounds are called: directly, as graphs of PyTorch's own kernels, or as graphs of compiled kernels."""
COMPILE: dict[Rounds, bool | Literal["capture"]] = {"off": False, "capture": "capture", "on": True}
"""The `compile=` of a decoder that calls its rounds so."""


class CostInfo(Part):
    """Seconds of a round of `batch` rows that drafts d tokens: d * draft_step + verify + (d + 1) * position."""

    draft_step: Amount
    """Seconds of a draft step."""
    verify: Amount
    """Seconds of a verification."""
    position: Amount
    """Seconds that each position verified adds."""
    batch: Natural
    """Number of rows."""


class Work(Part):
    """Numbers of decodings of a problem, made or taken from the cache, and of the tokens they emitted."""

    decoded: Count = 0
    """Number of decodings made."""
    decoded_tokens: Count = 0
    """Number of tokens that they emitted."""
    reused: Count = 0
    """Number of decodings taken from the cache."""
    reused_tokens: Count = 0
    """Number of tokens that those had emitted."""

    def __add__(self, other: Work) -> Work:
        # Not validated: the sum of what files may hold can be more than they may.
        return Work.model_construct(**{name: getattr(self, name) + getattr(other, name) for name in Work.model_fields})


class Effort(Part):
    """What the calibration decoded."""

    baseline: Work
    """With the target alone and with `sd`."""
    search: Work
    """For the search."""
    certification: Work
    """For the test."""
    trials: Count
    """Number of configurations that the search evaluated."""

    @property
    def total(self) -> Work:
        return self.baseline + self.search + self.certification
