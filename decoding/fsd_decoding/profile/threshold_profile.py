"""The profile: what was measured, chosen and certified, as one JSON file that a decoder can trust.

Knows the schema, what its numbers must agree on, and how to compare a profile with the models in hand.
Knows neither how the numbers were measured nor how the bounds were computed (DESIGN sections 10, 14).
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
from fsd_decoding.profile.io import SCHEMA_VERSION, first_problem, read_upgraded, write_whole
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
from fsd_decoding.profile.selection import Choice, Choosing

Outcome = Literal["certified", "not-certified", "lossless-suffices", "too-slow", "untested", "front"]
_WITH_THRESHOLD: Final = ("certified", "untested")
_MET: Final = (*_WITH_THRESHOLD, "lossless-suffices", "front")


class ThresholdProfile(Part):
    """The exported result of a calibration.

    outcome: `certified`: `threshold` was; `not-certified`: nothing tested passed; `lossless-suffices`: plain `sd`
        makes the speed asked for, or keeps what was asked and nothing fuzzy that does is surely faster; `too-slow`:
        nothing reaches the speed asked for; `untested`: the test was waived (--guarantee none); `front`: the whole
        curve was asked for, and no point chosen.
    accuracy, tokens_per_round, speed, its forecast: call `chosen` the configuration of `threshold`, where that is None
        of `estimate`, else the lossless rule.
    seeds: noise seeds a problem. sd_draft_length: the one `sd` was timed at, its own best.
    sd_draft_length, costs, numerical_churn, truncation, acceptance, effort: None where not measured.
    policy: what scales `threshold` from round to round; None: nothing does. A decoder follows it.
    other_drafts: tried in the same search and attempt; points of the curve name them. `draft` is the one that
        decoders of the profile draft with: the chosen setting's, and where there is no threshold that of `sd`.
    sd_draft: the id of the draft that `sd` was timed with, its own best, where it is not `draft`.
    early_stop: what ends drafts of fuzzy rules early; None: they have `draft_length` tokens. A decoder follows it.
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
            raise ValueError(f"lossy is {self.lossy} with threshold {self.threshold}; only null is lossless")
        if self.certificate.certified != (self.outcome == "certified"):
            raise ValueError(f"certified is {self.certificate.certified} with outcome {self.outcome!r}")
        if (self.outcome in _WITH_THRESHOLD) != (self.threshold is not None):
            raise ValueError(
                f"outcome is {self.outcome!r} with threshold {self.threshold}; certified and untested ones have a "
                "threshold, any other belongs in estimate"
            )
        if self.outcome == "untested" and self.certificate.guarantee != "none":
            raise ValueError(f"outcome is 'untested' with guarantee {self.certificate.guarantee!r}; it must be 'none'")
        return self

    @model_validator(mode="after")
    def _speed_agrees_with_outcome(self) -> Self:
        speed = self.speed
        if self.outcome == "too-slow" and speed.wanted is None:
            raise ValueError("outcome is 'too-slow', but no speed was wanted")
        claimed = {"lossless-suffices": speed.sd, "certified": speed.chosen, "untested": speed.chosen}
        made = claimed.get(self.outcome)
        if speed.wanted is not None and made is not None and made < speed.wanted:
            raise ValueError(f"outcome is {self.outcome!r}, but {made} {speed.unit} is below wanted {speed.wanted}")
        return self

    @property
    def effective_rule(self) -> str:
        """The rule a decoder runs: without a threshold `sd` where that suffices, else the lossless counterpart."""
        from fsd_decoding.acceptance.rules import rule_named

        if self.outcome == "lossless-suffices":
            return "sd"
        return self.rule if self.threshold is not None else rule_named(self.rule).lossless

    @property
    def effective_draft_length(self) -> int:
        """The draft length a decoder runs: that of `sd` where it runs losslessly."""
        if self.threshold is None and self.sd_draft_length is not None:
            return self.sd_draft_length
        return self.draft_length

    @property
    def configuration(self) -> Configuration:
        """What was chosen, as points of the curve have it."""
        return arm_of(self.rule, self.divergence, self.draft_length, self.policy), self.threshold

    @property
    def folder(self) -> Path | None:
        """What paths in it are relative to: where it was loaded from or first saved; None: nowhere yet."""
        return self._folder

    @property
    def met(self) -> bool:
        """Whether what was asked for was found."""
        return self.outcome in _MET

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all; elsewhere than it was, it still leads to its predictor. UsageError: it
        cannot be written."""
        folder = Path(path).absolute().parent
        write_whole(Path(path), self._from(folder).model_dump_json(indent=2) + "\n")
        if self.early_stop is None or self._folder is None:
            self._folder = folder

    def _from(self, folder: Path) -> ThresholdProfile:
        """The same as a file in `folder` says it: paths in it are relative to that."""
        stop = self.early_stop
        if stop is None or self._folder is None:
            return self
        there = os.path.relpath(self._folder / stop.predictor, folder)
        return self.model_copy(update={"early_stop": stop.model_copy(update={"predictor": there})})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ThresholdProfile:
        """Reads a file that `save` wrote, now or in an older schema. UsageError: it is missing, malformed or of a
        newer schema."""
        name = f"profile {os.fspath(path)!r}"
        content = read_upgraded(Path(path), name)
        try:
            profile = cls.model_validate(content)
        except ValidationError as error:
            raise UsageError(f"{name} is not valid: {first_problem(error)}") from error
        profile._folder = Path(path).absolute().parent
        return profile

    def check(self, target_model: Any, draft_model: Any, tokenizer: Any | None) -> None:
        """`compare`, which warns of what it says."""
        for doubt in self.compare(target_model, draft_model, tokenizer):
            _warn(doubt)

    def compare(self, target_model: Any, draft_model: Any, tokenizer: Any | None) -> list[str]:
        """Holds it against the models in hand, and against their tokenizer where there is one.

        Returns what moves the last bits of logits: another dtype or device.

        Raises:
            UsageError: other weights, configuration, vocabulary or tokenizer, or other divergences: the
                threshold says nothing about them. Or the draft is no model.
        """
        from fsd_decoding.divergence import DIVERGENCE_VERSION
        from fsd_decoding.drafters.base import DraftSource
        from fsd_decoding.models.fingerprint import tokenizer_fingerprint

        if isinstance(draft_model, DraftSource):
            raise UsageError(
                f"the profile is of the draft model {self.draft.id!r}, this draft is {draft_model!r}, which is no "
                "model; load that model, or decode without a profile"
            )
        if self.divergence_version != DIVERGENCE_VERSION:
            raise UsageError(
                f"the profile's divergences are version {self.divergence_version}, these are version "
                f"{DIVERGENCE_VERSION}; calibrate again"
            )
        if tokenizer is not None and tokenizer_fingerprint(tokenizer) != self.tokenizer:
            raise UsageError("the profile is of another tokenizer; load its models, or calibrate again")
        doubts = []
        for role, then, model in (("target", self.target, target_model), ("draft", self.draft, draft_model)):
            now = ModelInfo.of(model)
            _refuse_another(role, then, now)
            if then.dtype != now.dtype:
                doubts.append(f"the profile's {role} ran in {then.dtype}, this one is in {now.dtype}")
        if (kind := target_model.device.type) != self.device.split(":")[0]:
            doubts.append(f"the profile was calibrated on {self.device}, decoding runs on {kind}")
        return doubts

    def at(self, *, min_acc: float | None = None, min_speed: float | None = None, certified: bool = True) -> Choice:
        """Another point of the curve, chosen now: by retention the fastest, by tokens/s the most accurate.

        A stricter `min_acc` never gives a faster point, nor a stricter `min_speed` a more accurate one. What may be
        called certified then: see `profile_choosing.Choosing`.

        Args:
            certified: points are judged by the retention that is certified of them, and others are not chosen;
                False: by what was measured, which is no claim.

        Raises:
            UsageError: both or neither wish is given, or no point reaches it. It names what there is instead.
        """
        if (min_acc is None) == (min_speed is None):
            raise UsageError("at() takes min_acc or min_speed: exactly one of them")
        ended_by = (
            self.divergence if self.early_stop is not None else None
        )  # what ends drafts of the profile's decoders
        choosing = Choosing(self.curve, self.certificate, self.configuration, certified, ended_by)
        return choosing.by_accuracy(min_acc) if min_acc is not None else choosing.by_speed(min_speed or 0.0)


def _refuse_another(role: str, then: ModelInfo, now: ModelInfo) -> None:
    for what, before, here in (
        ("vocab_size", then.vocab_size, now.vocab_size),
        ("fingerprint", then.fingerprint[:12], now.fingerprint[:12]),
    ):
        if before != here:
            raise UsageError(
                f"the profile's {role} is {then.id!r} with {what} {before}, this {role} has {here}; "
                "load that model, or calibrate again"
            )


def _warn(message: str) -> None:
    """Names the line that called `SpeculativeDecoder.from_pretrained`, two calls above `check`."""
    warnings.warn(message, stacklevel=5)
