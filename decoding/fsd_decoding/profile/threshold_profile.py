"""The threshold profile: what a calibration measured, chose and certified, as one JSON file.

`docs/calibration.md` describes how the numbers are measured and the bounds computed.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import AwareDatetime, PrivateAttr, ValidationError, model_validator

from fsd_decoding.errors import UsageError
from fsd_decoding.profile.costs import CostInfo, Effort, Speed
from fsd_decoding.profile.curve import Configuration, CurvePoint, arm_of
from fsd_decoding.profile.io import SCHEMA_VERSION, first_problem, read_upgraded, write_atomically
from fsd_decoding.profile.parts import (
    AcceptanceInfo,
    Accuracy,
    Amount,
    Certificate,
    DataInfo,
    EarlyStopInfo,
    Estimate,
    ModelInfo,
    Natural,
    NumericalChurn,
    Part,
    SamplingInfo,
    TokensPerRound,
    Truncation,
)
from fsd_decoding.profile.policy import PolicyInfo
from fsd_decoding.profile.selection import Choice, PointSelector

Outcome = Literal["certified", "not-certified", "lossless-suffices", "too-slow", "untested", "front"]
_WITH_THRESHOLD: Final = ("certified", "untested")
_MET: Final = (*_WITH_THRESHOLD, "lossless-suffices", "front")


class ThresholdProfile(Part):
    """The exported result of a calibration.

    outcome: `certified`: `threshold` is certified; `not-certified`: no candidate passed the test; `lossless-suffices`:
        plain `sd` reaches the requested speed, or retains what was requested while no fuzzy candidate that does is
        surely faster; `too-slow`: nothing reaches the requested speed; `untested`: the test was waived
        (--guarantee none); `front`: the whole curve was requested, and no point was chosen.
    accuracy, tokens_per_round, speed and its forecast: `chosen` is the configuration of `threshold`; if that is None,
        of `estimate`; if that is None too, the lossless rule.
    seeds: noise seeds per problem.
    sd_draft_length: the draft length that `sd` was timed at, its own best.
    sd_draft_length, costs, numerical_churn, truncation, acceptance, effort: None if not measured.
    policy: scales `threshold` from round to round in decoders of the profile; None: the threshold is constant.
    draft: the model that decoders of the profile draft with: that of the chosen setting or, without a threshold, of
        `sd`.
    other_drafts: drafts of the same search and attempt; points of the curve name them.
    sd_draft: the id of the draft that `sd` was timed with, its own best, if it is not `draft`.
    early_stop: ends drafts of fuzzy rules early in decoders of the profile; None: they have `draft_length` tokens.
    """

    schema_version: Literal[3] = SCHEMA_VERSION
    created: AwareDatetime
    outcome: Outcome
    task: str
    data: DataInfo
    target: ModelInfo
    draft: ModelInfo
    tokenizer: str
    rule: str
    divergence: str
    divergence_version: int
    logits: Literal["raw", "processed"]
    within_support: bool = False
    threshold: Amount | None
    policy: PolicyInfo | None = None
    draft_length: Natural
    sd_draft_length: Natural | None = None
    sd_draft: str | None = None
    sampling: SamplingInfo
    seed: int
    seeds: Natural = 1
    lossy: bool
    curve: list[CurvePoint]
    certificate: Certificate
    accuracy: Accuracy
    tokens_per_round: TokensPerRound
    speed: Speed
    estimate: Estimate | None
    costs: CostInfo | None = None
    numerical_churn: NumericalChurn | None = None
    truncation: Truncation | None = None
    acceptance: AcceptanceInfo | None = None
    other_drafts: tuple[ModelInfo, ...] = ()
    early_stop: EarlyStopInfo | None = None
    effort: Effort | None = None
    device: str
    dtype: str
    versions: dict[str, str]
    _folder: Path | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _threshold_agrees_with_outcome(self) -> Self:
        if self.lossy != (self.threshold is not None):
            raise ValueError(
                f"lossy is {self.lossy}, but threshold is {self.threshold}; a profile with a threshold is lossy, one "
                "without is not"
            )
        if self.certificate.certified != (self.outcome == "certified"):
            raise ValueError(f"certificate.certified is {self.certificate.certified}, but outcome is {self.outcome!r}")
        if (self.outcome in _WITH_THRESHOLD) != (self.threshold is not None):
            raise ValueError(
                f"outcome is {self.outcome!r}, but threshold is {self.threshold}; only the outcomes 'certified' and "
                "'untested' have a threshold, that of any other outcome belongs in estimate"
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
        claimed = {"lossless-suffices": speed.sd, "certified": speed.chosen, "untested": speed.chosen}
        measured = claimed.get(self.outcome)
        if speed.wanted is not None and measured is not None and measured < speed.wanted:
            raise ValueError(
                f"outcome is {self.outcome!r}, but the speed, {measured} {speed.unit}, is below speed.wanted, "
                f"{speed.wanted}"
            )
        return self

    @property
    def effective_rule(self) -> str:
        """The rule that decoders run; without a threshold `sd` if that suffices, else the lossless counterpart."""
        from fsd_decoding.acceptance.rules import rule_named

        if self.outcome == "lossless-suffices":
            return "sd"
        return self.rule if self.threshold is not None else rule_named(self.rule).lossless

    @property
    def effective_draft_length(self) -> int:
        """The draft length that decoders use: that of `sd` if they decode losslessly."""
        if self.threshold is None and self.sd_draft_length is not None:
            return self.sd_draft_length
        return self.draft_length

    @property
    def configuration(self) -> Configuration:
        """The chosen configuration, in the form that points of the curve have."""
        return arm_of(self.rule, self.divergence, self.draft_length, self.policy), self.threshold

    @property
    def folder(self) -> Path | None:
        """The folder that paths in the profile are relative to, its file's; None: neither loaded nor saved yet."""
        return self._folder

    @property
    def met(self) -> bool:
        """Whether the calibration reached what was requested."""
        return self.outcome in _MET

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file atomically. The path of its predictor is adapted if the folder changes.

        Raises:
            UsageError: the file cannot be written.
        """
        folder = Path(path).absolute().parent
        write_atomically(Path(path), self._relative_to(folder).model_dump_json(indent=2) + "\n")
        if self.early_stop is None or self._folder is None:
            self._folder = folder

    def _relative_to(self, folder: Path) -> ThresholdProfile:
        """Returns a copy whose paths are relative to `folder`."""
        stop = self.early_stop
        if stop is None or self._folder is None:
            return self
        relative = os.path.relpath(self._folder / stop.predictor, folder)
        return self.model_copy(update={"early_stop": stop.model_copy(update={"predictor": relative})})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ThresholdProfile:
        """Reads a file that `save` wrote, in the current or an older schema.

        Raises:
            UsageError: the file is missing, malformed or of a newer schema.
        """
        name = f"profile {os.fspath(path)!r}"
        content = read_upgraded(Path(path), name)
        try:
            profile = cls.model_validate(content)
        except ValidationError as error:
            raise UsageError(f"{name} is not valid: {first_problem(error)}") from error
        profile._folder = Path(path).absolute().parent
        return profile

    def check(self, target_model: Any, draft_model: Any, tokenizer: Any | None) -> None:
        """Calls `compare` and issues what it returns as warnings."""
        for doubt in self.compare(target_model, draft_model, tokenizer):
            _warn(doubt)

    def compare(self, target_model: Any, draft_model: Any, tokenizer: Any | None) -> list[str]:
        """Compares the profile with loaded models and, if there is one, their tokenizer.

        Returns:
            Warnings of differences that change the last bits of logits, another dtype or device, and of fingerprints
            of an earlier version.

        Raises:
            UsageError: weights, configuration, vocabulary, tokenizer or the definition of divergences differ, so the
                threshold says nothing about these models; or the draft is not a model.
        """
        from fsd_decoding.divergence import DIVERGENCE_VERSION
        from fsd_decoding.drafters.base import DraftSource
        from fsd_decoding.models.fingerprint import doubt_of_sample, tokenizer_fingerprint

        if isinstance(draft_model, DraftSource):
            raise UsageError(
                f"the profile was calibrated with the draft model {self.draft.id!r}, but this draft, {draft_model!r}, "
                "is not a model; load that model, or decode without a profile"
            )
        if self.divergence_version != DIVERGENCE_VERSION:
            raise UsageError(
                f"the profile was calibrated with version {self.divergence_version} of the divergences, but this "
                f"fsd-calib has version {DIVERGENCE_VERSION}; calibrate again"
            )
        if tokenizer is not None and tokenizer_fingerprint(tokenizer) != self.tokenizer:
            raise UsageError(
                "the profile was calibrated with another tokenizer; load the profile's models, or calibrate again"
            )
        doubts = doubt_of_sample("profile", (self.target.fingerprint, self.draft.fingerprint), "calibrate")
        for role, then, model in (("target", self.target, target_model), ("draft", self.draft, draft_model)):
            now = ModelInfo.of(model, like=then)
            _check_same_model(role, then, now)
            if then.dtype != now.dtype:
                doubts.append(f"the profile was calibrated with the {role} in {then.dtype}, this one is in {now.dtype}")
        if (kind := target_model.device.type) != self.device.split(":")[0]:
            doubts.append(f"the profile was calibrated on {self.device}, decoding runs on {kind}")
        return doubts

    def at(self, *, min_acc: float | None = None, min_speed: float | None = None, certified: bool = True) -> Choice:
        """Returns another point of the curve: the fastest of a given retention, or the most accurate of a given speed.

        A stricter `min_acc` never returns a faster point, nor a stricter `min_speed` a more accurate one.
        `PointSelector` describes which points are certified when chosen like this.

        Args:
            min_acc: retention to keep.
            min_speed: tokens/s of one stream to reach.
            certified: choose among certified points only, by their certified retention. False: choose among all
                points by measured retention, which is no guarantee.

        Raises:
            UsageError: both or none of `min_acc` and `min_speed` are given, or no point reaches it; the message names
                the best point there is.
        """
        if (min_acc is None) == (min_speed is None):
            raise UsageError("at() takes exactly one of min_acc and min_speed")
        divergence = self.divergence if self.early_stop is not None else None  # an early stop is for one divergence
        selector = PointSelector(self.curve, self.certificate, self.configuration, certified, divergence)
        return selector.by_accuracy(min_acc) if min_acc is not None else selector.by_speed(min_speed or 0.0)


def _check_same_model(role: str, then: ModelInfo, now: ModelInfo) -> None:
    for what, before, here in (
        ("vocab_size", then.vocab_size, now.vocab_size),
        ("fingerprint", then.fingerprint[:12], now.fingerprint[:12]),
    ):
        if before != here:
            raise UsageError(
                f"the profile's {role} is {then.id!r} with {what} {before}, but this {role} has {here}; "
                "load that model, or calibrate again"
            )


def _warn(message: str) -> None:
    """Warns at the line that called `SpeculativeDecoder.from_pretrained`, two calls above `check`."""
    warnings.warn(message, stacklevel=5)
