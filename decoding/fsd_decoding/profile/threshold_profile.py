"""The threshold profile: what a calibration measured, chose and certified, as one JSON file.

`docs/calibration.md` describes how the numbers are measured, `docs/certificate.md` what the bounds claim.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import PrivateAttr

from fsd_common.errors import UsageError
from fsd_common.notebook import html_of
from fsd_decoding.model_options import UNQUANTISED
from fsd_decoding.profile.fields import MET, ProfileContent
from fsd_decoding.profile.io import file_of, write_atomically
from fsd_decoding.profile.parts import IN_WORDS, OWN_ENGINE, ModelInfo
from fsd_decoding.profile.selection import Choice, PointSelector

if TYPE_CHECKING:
    from fsd_decoding.profile.rendering import PromptRenderer


class ThresholdProfile(ProfileContent):
    """The exported result of a calibration, and its file.

    The digest that a calibration gives to a profile is that of its content, which it binds. A copy or a file that was
    changed later does not match it: it is `edited`. One that Python made has no digest, and is not bound either, until
    it is `sealed`. Whatever a profile says that is not bound, nothing certifies it.
    """

    _folder: Path | None = PrivateAttr(default=None)

    @property
    def name(self) -> str:
        return f"the profile of {self.task!r}"

    @property
    def folder(self) -> Path | None:
        """The folder that paths in the profile are relative to, its file's; None: neither loaded nor saved yet."""
        return self._folder

    @property
    def met(self) -> bool:
        """Whether the calibration reached what was requested, as far as the digest shows."""
        return self.outcome in MET and self.bound

    @property
    def certifies(self) -> bool:
        """Whether anything is certified: the chosen setting, points of a front, or lossless decoding itself."""
        front, lossless = any(p.simultaneous for p in self.curve), self.outcome == "lossless"
        return self.bound and (self.certificate.certified or front or (lossless and self.certificate.lossless))

    def _repr_html_(self) -> str | None:
        """Returns what notebooks show."""
        return html_of("profile", self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file atomically. The path of its predictor is adapted if the folder changes.

        The digest is written as it is: an edited profile remains edited.

        Raises:
            UsageError: the profile has no digest, or the file cannot be written.
        """
        self.check_sealed()
        folder = Path(path).absolute().parent
        write_atomically(Path(path), self._relative_to(folder).model_dump_json(indent=2) + "\n")
        self._file = Path(path)
        if self.early_stop is None or self._folder is None:
            self._folder = folder

    def _relative_to(self, folder: Path) -> ThresholdProfile:
        """Returns a copy whose paths are relative to `folder`."""
        stop = self.early_stop
        if stop is None or self._folder is None:
            return self
        relative = os.path.relpath(self._folder / stop.predictor, folder)
        moved = self.model_copy(update={"early_stop": stop.model_copy(update={"predictor": relative})})
        return moved.sealed() if self.bound else moved

    def require_single_texts(self, what: str) -> None:
        """Raises UsageError where the profile is of beams, which `what` does not decode."""
        if self.beams is not None:
            self.beams.refuse(self.task, what)

    def prompts(self, tokenizer: Any) -> PromptRenderer:
        """Returns what makes prompts, by a question each, as the calibration made them; only they are certified.

        Args:
            tokenizer: the target's; it has the chat template.

        Raises:
            UsageError: the profile does not say how they were made, its task makes them of whole documents, or the
                tokenizer has another chat template.
        """
        from fsd_decoding.profile.rendering import PromptRenderer

        whose = f"the prompts of the profile of {self.task!r}"
        if self.prompt is None:
            raise UsageError(f"{whose} were made by code of their calibration's own, which it does not hold")
        return PromptRenderer(self.prompt, tokenizer, whose)

    def prompt_doubt(self, tokenizer: Any) -> str | None:
        """Returns a warning where chats are rendered by another template than the profile's prompts were; else None."""
        from fsd_decoding.profile.rendering import template_digest

        if self.prompt is None or self.prompt.template in (None, template_digest(tokenizer)):
            return None
        return (
            f"the tokenizer's chat template is not the one that rendered the prompts of the profile of {self.task!r}: "
            "the certificate is for no prompts of this one"
        )

    def clock_doubt(self) -> str | None:
        """Returns a warning for a server, where the prompts of each day would be others; else None."""
        from fsd_decoding.profile.rendering import DAY

        if self.prompt is None or not self.prompt.clock:
            return None
        return (
            "the chat template writes the day into each prompt: a server writes today's, and the prompts of the "
            f"profile of {self.task!r} have {DAY:%d %B %Y}; send them, as profile.prompts(tokenizer) makes them, to "
            "/v1/completions"
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, allow_edited: bool = False) -> Self:
        profile = super().load(path, allow_edited=allow_edited)
        profile._folder = file_of(path).absolute().parent
        return profile

    @classmethod
    def _check_kind(cls, kind: object, name: str) -> None:
        if kind == "server":
            raise UsageError(
                f"{name} is of a server's knob, which no decoder here follows; fsd-profile show and export read it"
            )

    @classmethod
    def from_content(cls, content: str) -> ThresholdProfile:
        """Returns the profile of which `model_dump_json` returned `content`, as another process hands it on."""
        return cls.model_validate_json(content, strict=True)

    @property
    def engine_name(self) -> str:
        """The engine that the certificate is for."""
        return OWN_ENGINE if self.engine is None else self.engine.name

    def engine_doubt(self, name: str) -> str | None:
        """Returns a warning for decoding in the engine of this name where the certificate is for another one."""
        if name == self.engine_name:
            return None
        file = shlex.quote(str(self.file or "PROFILE"))
        return (
            f"the profile is of {self.engine or 'fsd-calib, our own engine'}, and {name} ends rounds elsewhere and "
            "rounds logits otherwise, so that texts, accuracy and speed may differ: its certificate is not for this "
            f"engine; `fsd-calibrate --certify {file} --engine {name}` tests its setting there, as a further "
            "attempt"
        )

    def check(self, target_model: Any, draft_model: Any, tokenizer: Any | None) -> None:
        """Calls `compare` and issues what it returns as warnings, at the caller's line."""
        for doubt in self.compare(target_model, draft_model, tokenizer):
            warnings.warn(doubt, stacklevel=2)

    def compare(self, target_model: Any, draft_model: Any, tokenizer: Any | None) -> list[str]:
        """Compares the profile with loaded models and, if there is one, their tokenizer.

        Returns:
            Warnings of differences that change the last bits of logits: another dtype, kind of attention or device.

        Raises:
            UsageError: weights, configuration, vocabulary, tokenizer or the definition of scores differ, so the
                threshold says nothing about these models; or the draft is of another kind.
        """
        from fsd_decoding.models.fingerprint import tokenizer_fingerprint
        from fsd_decoding.profile.drafts import info_of, kind_of

        if (kind := kind_of(draft_model)) != self.draft.kind:
            given = type(draft_model).__name__ if kind == "model" else f"{draft_model!r:.80}"
            raise UsageError(
                f"the profile was calibrated with the {IN_WORDS[self.draft.kind]} {self.draft.id!r}, but this draft is "
                f"{given}; give that one, or decode without a profile"
            )
        found = {
            "target": ModelInfo.of(target_model),
            "draft": info_of(draft_model, target_model),
        }
        doubts = self.compare_facts(found, None if tokenizer is None else tokenizer_fingerprint(tokenizer))
        for role, now in found.items():
            then = self.target if role == "target" else self.draft
            if then.attention != now.attention:
                doubts.append(
                    f"the profile was calibrated with {then.attention} attention in the {role}, this one has "
                    f"{now.attention}"
                )
        if (kind := target_model.device.type) != self.device.split(":")[0]:
            doubts.append(f"the profile was calibrated on {self.device}, decoding runs on {kind}")
        return doubts

    def compare_facts(self, found: Mapping[str, ModelInfo], tokenizer: str | None) -> list[str]:
        """Does what `compare` does, from what is known of the models.

        Args:
            found: of the "target" and the "draft", or of those that can be compared.
            tokenizer: its fingerprint; None: it is not compared.
        """
        from fsd_decoding.scores import SCORES_VERSION

        if self.scores_version != SCORES_VERSION:
            raise UsageError(
                f"the profile was calibrated with version {self.scores_version} of the scores, but this "
                f"fsd-calib has version {SCORES_VERSION}; calibrate again"
            )
        if tokenizer is not None and tokenizer != self.tokenizer:
            raise UsageError(
                "the profile was calibrated with another tokenizer; load the profile's models, or calibrate again"
            )
        doubts = []
        for role, now in found.items():
            then = self.target if role == "target" else self.draft
            _check_same_model(role, then, now)
            if then.dtype != now.dtype:
                doubts.append(f"the profile was calibrated with the {role} in {then.dtype}, this one is in {now.dtype}")
        return doubts

    def at(self, *, min_acc: float | None = None, min_speed: float | None = None, certified: bool = True) -> Choice:
        """Returns another point of the curve: the fastest of a given retention, or the most accurate of a given speed.

        A stricter `min_acc` never returns a faster point, nor a stricter `min_speed` a more accurate one.
        `PointSelector` describes which points are certified when chosen like this. If the profile is not `bound`,
        none is.

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
        score = self.score if self.early_stop is not None else None  # an early stop is for one score
        certificate = self.certificate if self.bound else self.certificate.model_copy(update={"guarantee": "none"})
        selector = PointSelector(self.curve, certificate, self.chosen, certified, score)
        choice = selector.by_accuracy(min_acc) if min_acc is not None else selector.by_speed(min_speed or 0.0)
        self.require_addons(choice.setting.rule, choice.setting.score)
        return choice


def _check_same_model(role: str, then: ModelInfo, now: ModelInfo) -> None:
    """UsageError if fingerprints differ. Their configurations and shapes tell vocabularies and quantisation apart."""
    if then.fingerprint == now.fingerprint:
        return
    what, before, here = "vocab_size", str(then.vocab_size), str(now.vocab_size)
    if before == here:
        what, before, here = "quantization", then.quantization or UNQUANTISED, now.quantization or UNQUANTISED
    if before == here:
        what, before, here = "fingerprint", then.fingerprint[:12], now.fingerprint[:12]
    raise UsageError(
        f"the profile's {role} is {then.id!r} with {what} {before}, but this {role} has {here}; load that model, or "
        "calibrate again"
    )
