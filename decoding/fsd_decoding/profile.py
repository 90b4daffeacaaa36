"""The profile: what was measured, chosen and certified, as one JSON file that a decoder can trust.

Knows the schema, what its numbers must agree on, and how to compare a profile with the models in hand.
Knows neither how the numbers were measured nor how the bounds were computed (DESIGN sections 10, 14).
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import AwareDatetime, ValidationError, model_validator

from fsd_decoding.errors import UsageError
from fsd_decoding.profile_parts import (
    Accuracy,
    Amount,
    Certificate,
    CurvePoint,
    DataInfo,
    Estimate,
    ModelInfo,
    Natural,
    Part,
    SamplingInfo,
    Speed,
    TokensPerRound,
)

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True)
class Choice:
    """A point of the curve, as `ThresholdProfile.at` picks it. `certified` False: it merely measured so."""

    rule: str
    divergence: str
    threshold: float
    draft_length: int
    certified: bool


class ThresholdProfile(Part):
    """The exported result of a calibration. `accuracy`, `tokens_per_round` and `speed` call `chosen` the
    configuration of `threshold`, where that is None of `estimate`, else the lossless rule."""

    schema_version: Literal[1] = SCHEMA_VERSION
    created: AwareDatetime
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
    draft_length: Natural
    sampling: SamplingInfo
    seed: int
    lossy: bool
    curve: list[CurvePoint]
    certificate: Certificate
    accuracy: Accuracy
    tokens_per_round: TokensPerRound
    speed: Speed
    estimate: Estimate | None
    device: str
    dtype: str
    versions: dict[str, str]

    @model_validator(mode="after")
    def _threshold_is_what_was_certified(self) -> Self:
        if self.lossy != (self.threshold is not None):
            raise ValueError(f"lossy is {self.lossy} with threshold {self.threshold}; only null is lossless")
        if self.certificate.certified != (self.threshold is not None):
            raise ValueError(
                f"certified is {self.certificate.certified} with threshold {self.threshold}; "
                "an uncertified threshold belongs in estimate"
            )
        return self

    @property
    def effective_rule(self) -> str:
        """The rule a decoder runs: the lossless counterpart where no threshold was certified."""
        from fsd_decoding.rules import rule_named

        return self.rule if self.threshold is not None else rule_named(self.rule).lossless

    @property
    def met(self) -> bool:
        """Whether what was asked for, accuracy or speed, was found."""
        fast_enough = self.speed.wanted is None or self.speed.chosen >= self.speed.wanted
        return self.certificate.certified and fast_enough

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all. UsageError: it cannot be written."""
        final = Path(path)
        unfinished = final.with_name(f".{final.name}.{os.getpid()}.tmp")
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
            unfinished.replace(final)
        except OSError as error:
            raise UsageError(f"profile {str(final)!r} cannot be written: {error.strerror}") from error
        finally:
            _remove(unfinished)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ThresholdProfile:
        """Reads a file that `save` wrote. UsageError: it is missing, malformed or of a newer schema."""
        name = f"profile {os.fspath(path)!r}"
        content = _read(Path(path), name)
        _check_schema_version(content, name)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise UsageError(f"{name} is not valid: {_first_problem(error)}") from error

    def check(self, target_model: Any, draft_model: Any, tokenizer: Any | None) -> None:
        """Compares with the models in hand, and with their tokenizer where there is one.

        Another dtype or device moves the last bits of logits: it warns.

        Raises:
            UsageError: other weights, configuration, vocabulary or tokenizer, or other divergences: the
                threshold says nothing about them. Or the draft is no model.
        """
        from fsd_decoding.divergence import DIVERGENCE_VERSION
        from fsd_decoding.drafter import DraftSource
        from fsd_decoding.fingerprint import tokenizer_fingerprint

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
        for role, then, model in (("target", self.target, target_model), ("draft", self.draft, draft_model)):
            now = ModelInfo.of(model)
            _refuse_another(role, then, now)
            if then.dtype != now.dtype:
                _warn(f"the profile's {role} ran in {then.dtype}, this one is in {now.dtype}")
        if (kind := target_model.device.type) != self.device.split(":")[0]:
            _warn(f"the profile was calibrated on {self.device}, decoding runs on {kind}")

    def at(self, *, min_acc: float | None = None, min_speed: float | None = None) -> Choice:
        """Another point of the curve, chosen now.

        A point certified to keep `min_acc` (retention) goes before faster ones that merely measured so.
        Each bound holds by itself; choosing among several by them would need simultaneous ones, so with
        more than one certified point only the profile's own choice stays certified, for what it was
        certified for.

        Raises:
            UsageError: both or neither is given, or no point reaches it.
        """
        if (min_acc is None) == (min_speed is None):
            raise UsageError("at() takes min_acc or min_speed: exactly one of them")
        if min_speed is not None:
            return self._at_speed(min_speed)
        assert min_acc is not None
        guaranteed = [p for p in self._bounded() if self._guarantee(p) >= min_acc]
        measured = [p for p in self._lossy() if p.retention >= min_acc]
        if not measured and not guaranteed:
            raise UsageError(f"min_acc is {min_acc}; no point of the curve keeps that much")
        return _choice(max(guaranteed or measured, key=lambda p: p.tokens_per_round), bool(guaranteed))

    def _at_speed(self, min_speed: float) -> Choice:
        reached = [p for p in self._lossy() if (p.tokens_per_second or 0.0) >= min_speed]
        if not reached:
            fastest = max((p.tokens_per_second or 0.0 for p in self._lossy()), default=0.0)
            raise UsageError(f"min_speed is {min_speed}; the curve's fastest point makes {fastest:.4g} tokens/s")
        best = max(reached, key=lambda p: p.retention)
        return _choice(best, best.lower_bound is not None and len(self._bounded()) == 1)

    def _guarantee(self, point: CurvePoint) -> float:
        """The retention that holds for a point with a bound, whoever chose it and when."""
        if len(self._bounded()) == 1:
            return point.lower_bound or 0.0
        mine = (point.threshold, point.draft_length) == (self.threshold, self.draft_length)
        return (self.certificate.wanted or 0.0) if mine else 0.0

    def _lossy(self) -> list[CurvePoint]:
        """Points with a threshold; what the tuning part said of one, the certification part corrects."""
        corrected = {_configuration(p) for p in self.curve if p.source == "certification"}
        return [
            p
            for p in self.curve
            if p.threshold is not None and (p.source == "certification" or _configuration(p) not in corrected)
        ]

    def _bounded(self) -> list[CurvePoint]:
        return [p for p in self._lossy() if p.lower_bound is not None]


def _configuration(point: CurvePoint) -> tuple[str, str, int, float | None]:
    return point.rule, point.divergence, point.draft_length, point.threshold


def _choice(point: CurvePoint, certified: bool) -> Choice:
    assert point.threshold is not None
    return Choice(point.rule, point.divergence, point.threshold, point.draft_length, certified)


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


def _read(path: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{name} is not a profile: it holds no JSON object")
    return content


def _check_schema_version(content: dict[str, Any], name: str) -> None:
    version = content.get("schema_version")
    if not isinstance(version, int):
        raise UsageError(f"{name} is not a profile: schema_version is {version!r}")
    if version > SCHEMA_VERSION:
        raise UsageError(f"{name} has schema_version {version}, this reads up to {SCHEMA_VERSION}; upgrade fsd-calib")


def _first_problem(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    where = ".".join(str(step) for step in problems[0]["loc"])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where + ': ' if where else ''}{problems[0]['msg']}{more}"


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # its folder cannot be written: there is nothing to remove
        path.unlink(missing_ok=True)
