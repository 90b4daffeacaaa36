"""What a profile holds: its fields, and contradictions between them that are refused."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BeforeValidator, Field, model_validator

from fsd_decoding.profile.costs import CostInfo, Effort, Rounds, Speed
from fsd_decoding.profile.curve import Configuration, CurvePoint, arm_of
from fsd_decoding.profile.io import SCHEMA_VERSION
from fsd_decoding.profile.outcome import BY_SPEED, CERTIFIED, FOLLOWED, Outcome, timed_outcome
from fsd_decoding.profile.parts import (
    AcceptanceInfo,
    Accuracy,
    Amount,
    Certificate,
    DataInfo,
    EarlyStopInfo,
    EngineInfo,
    Estimate,
    Lengths,
    ModelInfo,
    Natural,
    NumericalChurn,
    Part,
    Repetition,
    SamplingInfo,
    TokensPerRound,
    Truncation,
)
from fsd_decoding.profile.policy import PolicyInfo
from fsd_decoding.profile.prompt import PromptInfo
from fsd_decoding.trees.shape import TreeShape


def _date_time(created: Any) -> Any:
    """Reads text as ISO 8601, of which pydantic would take digits alone for seconds since 1970."""
    if not isinstance(created, str):
        return created
    if not re.match(r"\d{4}-\d\d-\d\d[Tt]", created):
        raise ValueError(f"{created!a:.60} is not a date and time as in ISO 8601")
    return datetime.fromisoformat(created)


class ProfileContent(Part):
    """The exported result of a calibration, as the fields of its file."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """Version of this schema."""
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """SHA-256, in hexadecimal, of all other fields as canonical JSON: that of Python's json.dumps with sort_keys=True
    and separators=(",", ":"). It binds the threshold to its certificate: a profile that was changed since has another
    one, and is not certified. It detects accidents and edits, not forgery."""
    created: Annotated[AwareDatetime, BeforeValidator(_date_time)]
    """When the calibration began, ISO 8601 with a time zone."""
    outcome: Outcome
    """What the test showed of accuracy, and then the clock of speed. certified-faster, -speed-unknown, -slower: the
    chosen setting passed the test, and its speed was shown to be higher than that of `sd` (or at least what was
    requested), was not shown to be higher or lower, or was shown to be lower. not-certified: no candidate passed the
    test. too-slow: nothing reaches the requested speed; what passed the test is certified all the same. untested: the
    calibration explored (--explore). front: the whole curve was requested, and no point was chosen. lossless: `sd`
    itself does what was requested, and no fuzzy setting was chosen."""
    task: str
    """Name of the task."""
    prompt: PromptInfo | None = None
    """How its prompts were made and its texts ended. null: not recorded, as a task of a user's own code made them."""
    data: DataInfo
    """The problems it was calibrated on."""
    target: ModelInfo
    """The target model."""
    draft: ModelInfo
    """The model that decoders of the profile draft with: that of the chosen setting; without a threshold, of `sd`."""
    tokenizer: str
    """Fingerprint of the tokenizer, which both models share."""
    rule: str
    """The acceptance rule that `threshold` is for. Without a threshold, decoders run its lossless counterpart."""
    divergence: str
    """The divergence that `threshold` is compared with."""
    divergence_version: int
    """Version of the definitions of divergences. With another one a threshold has another meaning."""
    logits: Literal["raw", "processed"]
    """The logits that the divergence is computed on: the models' own, or those that sampling has processed."""
    within_support: bool = False
    """Whether only tokens that sampling leaves in the target's distribution are accepted."""
    threshold: Amount | None
    """T: the largest divergence at which a drafted token is accepted. null: there is none, and decoding is lossless."""
    policy: PolicyInfo | None = None
    """Scales `threshold` from round to round in decoders of the profile. null: the threshold is constant."""
    draft_length: Natural
    """Number of tokens drafted in a round, one after the other: with trees, their depth."""
    tree: TreeShape | None = None
    """The shape of the trees that are drafted. null: chains are."""
    sd_draft_length: Natural | None = None
    """The draft length that `sd` was timed at, its own best. null: not measured."""
    sd_draft: str | None = None
    """The id of the draft that `sd` was timed with, its own best, if it is not `draft`."""
    sd_tree: TreeShape | None = None
    """The shape of the trees that `sd` was timed with, its own best. null: chains."""
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
    accuracy: Accuracy
    """Accuracy of the target and of the chosen configuration: that of `threshold`, or if that is null of `estimate`,
    or if that is null too the lossless rule."""
    tokens_per_round: TokensPerRound
    """Tokens per round of `sd` and of the chosen configuration, as in `accuracy`."""
    speed: Speed
    """Speeds of the target, of `sd` and of the chosen configuration, as in `accuracy`."""
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
    other_drafts: tuple[ModelInfo, ...] = ()
    """Drafts of the same search and attempt; points of the curve name them."""
    early_stop: EarlyStopInfo | None = None
    """Ends drafts of fuzzy rules early in decoders of the profile. null: they have `draft_length` tokens."""
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
        if self.outcome == "lossless" and speed.wanted is not None and speed.sd < speed.wanted:
            raise ValueError(
                f"outcome is 'lossless', but the speed, {speed.sd} {speed.unit}, is below speed.wanted, {speed.wanted}"
            )
        return self

    @property
    def effective_rule(self) -> str:
        """The rule that decoders run; without a threshold `sd` if the request was met, else its lossless form."""
        from fsd_decoding.acceptance.rules import rule_named

        if self.threshold is not None:
            return self.rule
        return "sd" if self.outcome == "lossless" or self.certificate.certified else rule_named(self.rule).lossless

    @property
    def effective_draft_length(self) -> int:
        """The draft length that decoders use: that of `sd` if they decode losslessly."""
        if self.threshold is None and self.sd_draft_length is not None:
            return self.sd_draft_length
        return self.draft_length

    @property
    def effective_tree(self) -> TreeShape | None:
        """The shape of the trees that decoders draft: that of `sd` if they decode losslessly. None: chains."""
        if self.threshold is None and self.sd_draft_length is not None:
            return self.sd_tree
        return self.tree

    @property
    def configuration(self) -> Configuration:
        """The certified or else followed configuration, in the form that points of the curve have."""
        slower = self.estimate if self.certificate.certified else None
        threshold, draft = (self.threshold, None) if slower is None else (slower.threshold, slower.draft)
        return arm_of(self.rule, self.divergence, self.draft_length, self.policy, draft, self.tree), threshold


def _shown_by(speed: Speed) -> Outcome:
    """The outcome of a setting with these speeds that passed its test."""
    unknown: Outcome = "certified-speed-unknown"
    ends = speed.intervals
    return unknown if ends is None else timed_outcome(unknown, ends.over_sd, ends.chosen, speed.wanted)
