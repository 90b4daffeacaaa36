"""What a profile holds: outcome, speeds, costs, curve and all other fields, and contradictions that are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, model_validator

from fsd_common.addons import Addon
from fsd_common.errors import UsageError
from fsd_decoding.judging.known import is_judge, register
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.profile.certificate import Certificate, GuardEstimate, OutcomeCounts, check_total
from fsd_decoding.profile.parts import (
    AcceptanceInfo,
    Accuracy,
    Amount,
    BeamsInfo,
    Confidence,
    Count,
    DataInfo,
    EarlyStopInfo,
    EngineInfo,
    Estimate,
    KeptScoresInfo,
    Lengths,
    ModelInfo,
    Natural,
    NumericalChurn,
    Part,
    PolicyInfo,
    Positive,
    Ratio,
    Repetition,
    SamplingInfo,
    Share,
    TokensPerRound,
    Truncation,
)
from fsd_decoding.profile.prompt_form import PromptInfo
from fsd_decoding.profile.sealed import Sealed
from fsd_decoding.profile.setting import Setting
from fsd_decoding.tree_shape import TreeShape

Outcome = Literal[
    "certified-faster", "certified-speed-unknown", "certified-slower", "not-certified", "too-slow", "untested", "front",
    "lossless",
]  # fmt: skip
CERTIFIED: Final = ("certified-faster", "certified-speed-unknown", "certified-slower")
"""Outcomes in which the test passed, whatever the clock showed."""
FOLLOWED: Final = ("certified-faster", "certified-speed-unknown", "untested")
"""Outcomes in which decoders always run the chosen setting."""
BY_SPEED: Final = ("certified-slower", "too-slow")
"""Outcomes in which it depends on how fast the setting is, see `follows`."""
MET: Final = (*CERTIFIED, "untested", "lossless", "front")
"""Outcomes in which the calibration reached what was requested."""


def timed_outcome(
    tested: Outcome, over_lossless: tuple[float, float], chosen: tuple[float, float], wanted: float | None = None
) -> Outcome:
    """Returns the outcome after timing: of a setting that passed its test, by the intervals [low, high] of its speed.

    Args:
        tested: the outcome before: of what passed its test `certified-speed-unknown`. Any other one stands.
        over_lossless: of its speed divided by that of the fastest lossless rule.
        chosen: of its speed.
        wanted: the speed that was requested; None: the highest was, so it is compared with the fastest lossless rule.
    """
    if tested != "certified-speed-unknown":
        return tested
    if wanted is not None and chosen[1] < wanted:
        return "too-slow"
    if over_lossless[1] < 1:
        return "certified-slower"
    shown = over_lossless[0] > 1 if wanted is None else chosen[0] >= wanted
    return "certified-faster" if shown else "certified-speed-unknown"


def follows(outcome: Outcome, over_lossless: tuple[float, float], *, certified: bool, lossless_meets: bool) -> bool:
    """Returns whether decoders run the chosen setting: an explored one, or one that passed its test, unless
    lossless decoding is shown to be faster and does what was requested.

    Args:
        outcome: after timing.
        over_lossless: the interval [low, high] of its speed divided by that of the fastest lossless rule; up to
            infinity where nothing was timed.
        certified: whether the setting passed its test.
        lossless_meets: whether the lossless one does what was requested, as far as a faster one can.
    """
    return outcome == "untested" or (certified and (over_lossless[1] >= 1 or not lossless_meets))


def _check_order(interval: tuple[float, float]) -> tuple[float, float]:
    if interval[0] > interval[1]:
        raise ValueError(f"[{interval[0]}, {interval[1]}] is not an interval; it must be [low, high]")
    return interval


Interval = Annotated[tuple[Amount, Amount], AfterValidator(_check_order)]


class SpeedIntervals(Part):
    """Confidence intervals [low, high] of each speed, in its unit, and of the ratios of the chosen one to the
    lossless one and to the target alone. Ratios are of the same problems, so a slow machine changes them less
    than the speeds."""

    target: Interval
    """Of the speed of the target alone."""
    lossless: Interval
    """Of the speed of the fastest lossless rule."""
    chosen: Interval
    """Of the speed of the chosen configuration."""
    over_lossless: Interval
    """Of the chosen configuration's speed divided by that of the fastest lossless rule."""
    over_target: Interval
    """Of the chosen configuration's speed divided by that of the target alone."""
    confidence: Confidence
    """Confidence of each interval."""


class SpeedRatios(Part):
    """How many times as fast the chosen configuration is: the centre of the ratios of single problems (with several
    streams: groups of problems), which both configurations decoded one after the other. Stalls of the machine change it
    less than they change speeds, so it is not exactly a speed divided by another."""

    over_lossless: Positive
    """As `lossless`."""
    over_target: Positive
    """As the target alone."""


class _EachOfThree(Part):
    target: Positive
    """Of the target alone."""
    lossless: Positive
    """Of the fastest lossless rule (`sd`, `coupled` or `sd-block`) at its own best draft length."""
    chosen: Positive
    """Of the chosen configuration."""


class AnswerSeconds(_EachOfThree):
    """Seconds that a stream takes for each answer, from the same timing as the speeds. What writes longer texts may
    make more tokens a second and still take longer."""


class SpeedFigures(_EachOfThree):
    """Speeds of the target alone, of the fastest lossless rule at its best and of the chosen configuration, measured in
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
    def over_lossless(self) -> float:
        """How many times as fast as the fastest lossless rule the chosen configuration is."""
        return self.chosen / self.lossless if self.ratios is None else self.ratios.over_lossless

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
    """With the target alone and with the fastest lossless rule."""
    search: Work
    """For the search."""
    certification: Work
    """For the test."""
    trials: Count
    """Number of configurations that the search evaluated."""

    @property
    def total(self) -> Work:
        return self.baseline + self.search + self.certification


Source = Literal["tuning", "certification"]


class CurvePoint(Part):
    """One setting, measured on one part beside the target on the same problems."""

    setting: Setting
    """What was measured."""
    source: Source
    """The part that the problems are of."""
    problems: Natural
    """Number of problems it was measured on."""
    seeds: Natural = 1
    """Number of noise seeds per problem."""
    counts: OutcomeCounts | None = None
    """What was counted beside the target. null: not recorded."""
    accuracy: Share
    """Share of right answers."""
    retention: Ratio
    """Right answers, divided by those of the target."""
    interval: tuple[Ratio, Ratio] | None = None
    """Approximate two-sided interval of retention at the certificate's confidence, by itself, whatever the choice of
    the point, and whichever look ended its decoding. null: not recorded, or the target solved nothing."""
    lower_bound: Ratio | None
    """Lower bound of retention, by itself at the certificate's level or, if `simultaneous`, together with all other
    such points. null: the point was not tested."""
    simultaneous: bool = False
    """Whether the bound holds together with those of all other such points."""
    tokens_per_round: Positive
    """Tokens per round."""
    accepted: Share | None = None
    """Share of the drafted tokens that were accepted. null: nothing was drafted, or it is not recorded."""
    forecast: Amount | None
    """Tokens/s of one stream by the cost model, from the rounds that the setting took on the tuning part, so that its
    points on both parts have the same. Timed speeds are in the profile's `speed`. null: not known."""

    @model_validator(mode="after")
    def _bounds_need_certification(self) -> Self:
        if self.lower_bound is not None and self.source != "certification":
            raise ValueError("a point measured on the tuning part must not have a lower_bound")
        if self.simultaneous and self.lower_bound is None:
            raise ValueError("simultaneous is true, but lower_bound is null")
        if self.counts is not None:
            check_total(self.counts, self.problems, self.seeds)
        return self


def _date_time(created: Any) -> Any:
    """Reads text as ISO 8601, of which pydantic would take digits alone for seconds since 1970."""
    if not isinstance(created, str):
        return created
    if not re.match(r"\d{4}-\d\d-\d\d[Tt]", created):
        raise ValueError(f"{created!a:.60} is not a date and time as in ISO 8601")
    return datetime.fromisoformat(created)


class ProfileContent(Sealed):
    """The exported result of a calibration, as the fields of its file."""

    created: Annotated[AwareDatetime, BeforeValidator(_date_time)]
    """When the calibration began, ISO 8601 with a time zone."""
    outcome: Outcome
    """What the test showed of accuracy, and then the clock of speed. certified-faster, -speed-unknown, -slower: the
    chosen setting passed the test, and its speed was shown to be higher than that of `lossless` (or at least what was
    requested), was not shown to be higher or lower, or was shown to be lower. not-certified: no candidate passed the
    test. too-slow: nothing reaches the requested speed; what passed the test is certified all the same. untested: the
    calibration explored (--explore). front: the whole curve was requested, and no point was chosen. lossless:
    `lossless` itself does what was requested, and no fuzzy setting was chosen."""
    task: str
    """Name of the task."""
    prompt: PromptInfo | None = None
    """How its prompts were made and its texts ended. null: not recorded, as a task of a user's own code made them."""
    data: DataInfo
    """The problems it was calibrated on."""
    target: ModelInfo
    """The target model."""
    draft: ModelInfo
    """The model that decoders of the profile draft with: of the chosen setting; without a threshold of `lossless`."""
    tokenizer: str
    """Fingerprint of the tokenizer, which both models share."""
    rule: str
    """The acceptance rule that `threshold` is for. Without a threshold, decoders run its lossless counterpart."""
    score: str
    """The score that `threshold` is compared with."""
    divergence: str = Field(default_factory=lambda given: given["score"])
    """`score`, by another name that readers of profiles may rely on."""
    scores_version: int
    """Version of the definitions of scores. With another one a threshold has another meaning."""
    logits: Literal["raw", "processed"]
    """The logits that the score is computed on: the models' own, or those that sampling has processed."""
    within_support: bool = False
    """Whether only tokens that sampling leaves in the target's distribution are accepted."""
    threshold: Amount | None
    """T: the largest score at which a drafted token is accepted. null: there is none, and decoding is lossless."""
    policy: PolicyInfo | None = None
    """Scales `threshold` from round to round in decoders of the profile. null: the threshold is constant."""
    draft_length: Natural
    """Number of tokens drafted in a round, one after the other: with trees, their depth; with
    beams, layers."""
    tree: TreeShape | None = None
    """The shape of the trees that are drafted. null: chains are."""
    beams: BeamsInfo | None = None
    """The beams that prompts are decoded to. null: they are decoded to single texts."""
    lossless: Setting | None = None
    """The fastest lossless rule, with what it was timed with, its own best. null: not measured."""
    sampling: SamplingInfo
    """How tokens were sampled."""
    seed: int
    """Seed of the noise, and of the choice of problems."""
    seeds: Natural = 1
    """Number of noise seeds per problem."""
    lossy: bool
    """Whether decoders of the profile may change texts: whether it has a threshold."""
    curve: list[CurvePoint]
    """The measured points, one for each configuration and part."""
    certificate: Certificate
    """What was tested, and what it showed."""
    guards: tuple[GuardEstimate, ...] = ()
    """What the chosen configuration keeps on other tasks, as far as that was asked for."""
    accuracy: Accuracy
    """Accuracy of the target and of the chosen configuration: that of `threshold`, or if that is null of `estimate`,
    or if that is null too the lossless rule."""
    tokens_per_round: TokensPerRound
    """Tokens per round of the fastest lossless rule and of the chosen configuration, as in `accuracy`."""
    speed: Speed
    """Speeds of the target, of `lossless` and of the chosen configuration, as in `accuracy`."""
    estimate: Estimate | None
    """The configuration that was tested or chosen and that decoders do not run. null: there is none, or they run it."""
    costs: CostInfo | None = None
    """The cost model that speeds are forecast with. null: not measured."""
    numerical_churn: NumericalChurn | None = None
    """What rounding alone changes. null: not measured."""
    truncation: Truncation | None = None
    """How many texts reached the limit on new tokens. null: not measured."""
    lengths: Lengths | None = None
    """How long texts are. null: not measured."""
    repetition: Repetition | None = None
    """How many texts end in a loop. null: not measured."""
    acceptance: AcceptanceInfo | None = None
    """The acceptance rates that a decoder's own are compared with. null: not measured."""
    kept_scores: KeptScoresInfo | None = None
    """The scores that a decoder's own are compared with. null: no score keeps a token, or another engine decoded."""
    other_drafts: tuple[ModelInfo, ...] = ()
    """Drafts of the same search and attempt; points of the curve name them."""
    addons: tuple[Addon, ...] = ()
    """Code that is not of fsd-calib and that points of the curve depend on. Decoders of the profile refuse other code
    under these names."""
    judge: JudgeModel | None = None
    """The learned score that points of the curve have, if any: its name is judge@ and a number that follows from it."""
    early_stop: EarlyStopInfo | None = None
    """Ends drafts of fuzzy rules early in decoders of the profile. null: they have `draft_length` tokens."""
    stop_policy: str | None = None
    """The policy that ends drafts of the rule early in decoders of the profile, by its name: code that is not of
    fsd-calib. null: there is none."""
    effort: Effort | None = None
    """What the calibration decoded. null: not measured."""
    compile: Rounds | None = None
    """How rounds were called when speeds and costs were measured: off (directly), capture (as graphs of PyTorch's own
    kernels) or on (as graphs of compiled kernels). Decoders of the profile call them as they are told themselves.
    null: another engine did, in its own way."""
    engine: EngineInfo | None = None
    """What decoded and timed the texts that the profile is of, and so what its certificate is for. null: fsd-calib's
    own engine."""
    device: str
    """The device that the target was on, as torch names it."""
    dtype: str
    """The dtype of the target, as torch names it."""
    versions: dict[str, str]
    """Versions of Python and of the packages that decide what is computed."""

    @model_validator(mode="after")
    def _threshold_agrees_with_outcome(self) -> Self:
        if self.divergence != self.score:
            raise ValueError(
                f"divergence is {self.divergence!r}, but score is {self.score!r}; they are one, change both"
            )
        if self.lossy != (self.threshold is not None):
            raise ValueError(
                f"lossy is {self.lossy}, but threshold is {self.threshold}; a profile with a threshold is lossy, one "
                "without is not"
            )
        certified = self.certificate.certified
        if self.outcome != "too-slow" and certified != (self.outcome in CERTIFIED):
            raise ValueError(f"certificate.certified is {certified}, but outcome is {self.outcome!r}")
        if not (certified and self.outcome in BY_SPEED) and (self.outcome in FOLLOWED) != (self.threshold is not None):
            raise ValueError(
                f"outcome is {self.outcome!r}, but threshold is {self.threshold}; the outcomes {', '.join(FOLLOWED)} "
                "have a threshold, that of any other outcome belongs in estimate"
            )
        if certified and (self.threshold is None) == (self.estimate is None):
            raise ValueError(
                f"certificate.certified is True, but threshold is {self.threshold} and estimate "
                f"{'null' if self.estimate is None else 'given'}; exactly one of them must have the certified setting"
            )
        if self.outcome == "untested" and self.certificate.guarantee != "none":
            raise ValueError(
                f"outcome is 'untested', but certificate.guarantee is {self.certificate.guarantee!r}; it must be 'none'"
            )
        return self

    @model_validator(mode="after")
    def _speed_agrees_with_outcome(self) -> Self:
        speed = self.speed
        if self.outcome == "too-slow" and speed.wanted is None:
            raise ValueError("outcome is 'too-slow', but speed.wanted is null; it must be the requested speed")
        if self.outcome == "too-slow" and self.certificate.problems and self.estimate and not speed.is_below_wanted:
            raise ValueError(
                f"outcome is 'too-slow', but what passed its test may reach speed.wanted, {speed.wanted}; its "
                "interval must be below that"
            )
        if self.outcome in ("certified-faster", "certified-slower") and self.outcome != (shown := _shown_by(speed)):
            raise ValueError(f"outcome is {self.outcome!r}, but the intervals of speed show {shown!r}")
        if self.outcome == "lossless" and speed.wanted is not None and speed.lossless < speed.wanted:
            raise ValueError(
                f"outcome is 'lossless', but the speed, {speed.lossless} {speed.unit}, is below speed.wanted, "
                f"{speed.wanted}"
            )
        return self

    @model_validator(mode="after")
    def _judge_is_of_these_models(self) -> Self:
        """Also makes the judge known, so that its score is found by name."""
        scores = {self.score, *(point.setting.score for point in self.curve)}
        wanted = set(filter(is_judge, scores))
        if wanted - ({self.judge.name} if self.judge else set()):
            raise ValueError(f"score is {min(wanted)!r}, and judge is {self.judge and self.judge.name!r}; they are one")
        if self.judge is None:
            return self
        drafts = {model.fingerprint for model in (self.draft, *self.other_drafts)}
        drawn = type(self.sampling).model_validate(self.judge, from_attributes=True)
        own = (self.judge.target, self.judge.tokenizer, drawn)
        if own != (self.target.fingerprint, self.tokenizer, self.sampling) or self.judge.draft not in drafts:
            raise ValueError("judge is of other models, or of another tokenizer or sampling")
        register(self.judge)
        return self

    @property
    def chosen(self) -> Setting:
        """The chosen setting, whether decoders run it, or it is an estimate; without a threshold if none was chosen."""
        threshold, draft = self.threshold, None
        if self.estimate is not None:
            threshold, draft = self.estimate.threshold, self.estimate.draft
        width = None if self.beams is None else self.beams.width
        return Setting(self.rule, self.score, self.draft_length, threshold, self.policy, draft, self.tree, width)

    @property
    def granted(self) -> Setting | None:
        """The chosen setting where decoders run it, or it is certified; None: there is none."""
        return self.chosen if self.threshold is not None or self.certificate.certified else None

    @property
    def followed(self) -> Setting:
        """The setting that decoders run. Without a threshold they run `lossless` if that does what was requested, else
        the lossless form of the rule, with the same drafts."""
        from fsd_decoding.rules import rule_named

        if self.threshold is not None:
            return self.chosen
        self.require_addons(self.rule)
        best = replace(self.lossless or self.chosen.under("sd"), score=self.score, draft=None)
        suffices = self.outcome == "lossless" or self.certificate.certified
        return best if suffices else best.under(rule_named(self.rule).lossless)

    def require_addons(self, *names: str) -> None:
        """Raises UsageError where code that is not of fsd-calib is missing here, or is not what was calibrated with.

        Args:
            names: of rules, scores, drafters and stop policies.
        """
        recorded, whose = {each.name: each for each in self.addons}, f"the profile of {self.task!r}"
        for family in (name.partition("@")[0] for name in names):
            if family in recorded:
                recorded[family].require(whose)
            elif ":" in family:
                raise UsageError(f"{whose} needs {family!r}, and does not say what code that was; calibrate again")


def _shown_by(speed: Speed) -> Outcome:
    """The outcome of a setting with these speeds that passed its test."""
    unknown: Outcome = "certified-speed-unknown"
    ends = speed.intervals
    return unknown if ends is None else timed_outcome(unknown, ends.over_lossless, ends.chosen, speed.wanted)
