"""Decoding by a profile: the configuration that it sets, what it certified of that, what is said, what is watched."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from fsd_common.errors import UsageError
from fsd_decoding.batch import Request
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.config import DecodingConfig
from fsd_decoding.decoding_setting import DecodingSetting
from fsd_decoding.policies.stopping import StopPolicy, stop_policy_named
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.profile.fields import MET
from fsd_decoding.profile.parts import OWN_ENGINE, AcceptanceInfo, BeamsInfo, brief
from fsd_decoding.profile.prompt_form import PromptInfo
from fsd_decoding.profile.rendering import PromptRenderer
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape


class Drafts(NamedTuple):
    """The shape of drafts; without a tree they are chains."""

    draft_length: int | None
    tree: TreeShape | None


@dataclass(frozen=True)
class DraftsByRule:
    """What decoders of a profile draft under rules with and without a threshold."""

    fuzzy: Drafts
    lossless: Drafts

    @classmethod
    def of(cls, profile: ThresholdProfile) -> DraftsByRule:
        """Where `lossless` was timed with another shape of the same draft, lossless rules take that, as deep."""
        followed, lossless = profile.followed, profile.lossless
        own = Drafts(followed.draft_length, followed.tree)
        if lossless is None or lossless.draft is not None or lossless.tree == own.tree:
            return cls(own, own)
        return cls(own, Drafts(lossless.draft_length, lossless.tree))

    def followed(self, kept: Drafts, before: str, rule: str) -> Drafts:
        """Returns what a decoder drafts under another rule: the profile's own goes with the rule, another tree stays.

        Args:
            kept: what it drafts under the rule `before`.
        """
        then, now = self._under(before), self._under(rule)
        if kept.tree != then.tree:
            return kept
        return now if kept == then else kept._replace(tree=now.tree)

    def changed(self, config: DecodingConfig, given: Mapping[str, Any]) -> DecodingConfig:
        """Returns a configuration with the drafts of the rule that is given in its place, if no tree is given too."""
        rule = given.get("rule")
        if not isinstance(rule, str) or given.get("tree") is not None:
            return config
        kept: Any = Drafts(config.draft_length, config.tree)  # type: ignore[arg-type]  # a decoder has one of each
        return replace(config, **self.followed(kept, str(config.rule), rule)._asdict())

    def _under(self, rule: str) -> Drafts:
        return self.fuzzy if rule_named(rule).fuzzy else self.lossless


_LONGEST = 60  # characters of a value that are shown


@dataclass(frozen=True)
class Coverage:
    """The setting that decoders of a profile run, and whether a certificate is for it.

    Args:
        setting: what the profile sets.
        task: the profile's task.
        certified: whether its certificate is for this setting.
        drafts: what the profile sets of drafts, by rule.
        prompt: how its prompts were made; None: it does not say.
        beams: those that prompts are decoded to; None: single texts.
    """

    setting: DecodingSetting
    task: str
    certified: bool
    drafts: DraftsByRule
    prompt: PromptInfo | None = None
    beams: BeamsInfo | None = None

    def require_single_texts(self, what: str) -> None:
        """Raises UsageError where the profile is of beams, which `what` does not decode."""
        if self.beams is not None:
            self.beams.refuse(self.task, what)

    @property
    def own_beams(self) -> BeamSettings | None:
        """How beams are decoded that are the profile's; None: it is of single texts."""
        own = self.beams
        return None if own is None else BeamSettings(own.number, own.width, own.replacement)

    def covers(self, setting: DecodingSetting) -> bool:
        """Whether a setting is the profile's own."""
        return setting.values() == self.setting.values()

    def keeps_threshold(self, setting: DecodingSetting) -> bool:
        """Whether a setting has the profile's rule and threshold, whatever else differs."""
        now, own = setting.values(), self.setting.values()
        return all(now[name] == own[name] for name in ("rule", "threshold", "threshold_policy"))

    def departure(self, settings: Iterable[DecodingSetting]) -> str | None:
        """Returns a warning that names what differs from the profile; None where nothing does, or all are lossless."""
        lossy = [setting.values() for setting in settings if not setting.lossless]
        own = self.setting.values()
        changed = [f"{name} is {_shown(name, now)} instead of {_shown(name, then)}" for name, then in own.items()
                   if (now := next((each[name] for each in lossy if each[name] != then), then)) != then]  # fmt: skip
        return self._outside(changed)

    def other_beams(self, beams: BeamSettings) -> str | None:
        """Returns a warning where beams are decoded otherwise than the profile says, or where it is of none."""
        if (own := self.own_beams) is None:
            return "a profile certifies single texts; nothing certifies these beams"
        then, now = vars(own), vars(beams)
        return self._outside(
            [f"{name} is {now[name]!r} instead of {was!r}" for name, was in then.items() if now[name] != was]
        )

    def unvoted(self, returned: int) -> str | None:
        """Returns a warning where the majority of beams answers, and not all texts of a prompt are returned."""
        own = self.beams
        if own is None or own.answer == "best" or returned == own.number:
            return None
        return self._outside([f"texts returned of a prompt are {returned} instead of the {own.number} that vote"])

    def asked_otherwise(
        self, tokenizer: Any, prompts: Sequence[str | list[int]], max_new_tokens: int, stop: Sequence[str]
    ) -> str | None:
        """Returns a warning where prompts, or what ends a text, are not the profile's; None where nothing is known.

        Prompts that are token ids are not compared.
        """
        if self.prompt is None:
            return None
        most, ends = self.prompt.max_new_tokens, self.prompt.stop
        changed = [] if max_new_tokens == most else [f"max_new_tokens is {max_new_tokens} instead of {most}"]
        if set(stop) != set(ends):  # in any order
            changed.append(f"stop is {_shown('stop', tuple(stop))} instead of {_shown('stop', ends)}")
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        with suppress(UsageError):  # only a question is told from what surrounds it
            asked = PromptRenderer(self.prompt, tokenizer, "prompts")
            if any(asked.asks(text) is False for text in texts):
                changed.insert(0, "prompts are not made as in the calibration")
        return self._outside(changed)

    def _outside(self, changed: Sequence[str]) -> str | None:
        if not changed:
            return None
        whose = f"the profile of {self.task!r}"
        none = f"{whose} certifies no threshold, so nothing is known of what this costs in accuracy"
        return f"{', '.join(changed)}: " + (f"the certificate of {whose} does not apply" if self.certified else none)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, StopPolicy | ThresholdPolicy):
        return type(value).__name__
    shown = repr(value)
    with suppress(TypeError, ValueError, KeyError):  # a policy of users may have an identity of any form
        shown = brief(value) if name == "threshold_policy" else shown
    return f"{shown:.{_LONGEST}}"


WINDOW = 200  # texts
_STANDARD_ERRORS = 5.5
_MIN_TEXTS = 100  # texts of a profile: with fewer, their standard deviation is too uncertain
_MIN_DEVIATION = 0.02  # without spread in calibration, a single different text would count as drift


class Finished(Protocol):
    """A finished text: a `Result`, or a row of the engine."""

    @property
    def drafted(self) -> int: ...
    @property
    def accepted(self) -> int: ...


class FinishedHere(Finished, Protocol):
    """One of our own engine."""

    @property
    def interval(self) -> tuple[float, float]: ...


def share_of_threshold(interval: tuple[float, float], threshold: float) -> float:
    """Returns how near to T the scores of a text come, see `KeptScoresInfo`.

    Args:
        interval: of the T that give the text; it begins with the largest score that kept a token.
    """
    return min(max(interval[0], 0.0) / threshold, 1.0)


def expected_range(calibrated: AcceptanceInfo) -> tuple[float, float]:
    """Returns the range of a window's mean acceptance rate: ± 5.5 standard errors (of window and profile)."""
    deviation = max(calibrated.deviation, _MIN_DEVIATION)
    reach = _STANDARD_ERRORS * deviation * math.sqrt(1 / WINDOW + 1 / calibrated.texts)
    return calibrated.mean - reach, calibrated.mean + reach


@dataclass
class _Windows:
    """Means of one number of each text over windows of texts, beside those of the calibration."""

    calibrated: AcceptanceInfo
    _texts: int = 0
    _sum: float = 0.0

    def add(self, value: float) -> float | None:
        """Returns the mean of a window that this text completes, if it is outside the expected range."""
        if self.calibrated.texts < _MIN_TEXTS:
            return None
        self._texts, self._sum = self._texts + 1, self._sum + value
        if self._texts < WINDOW:
            return None
        mean, (low, high) = self._sum / self._texts, expected_range(self.calibrated)
        self._texts, self._sum = 0, 0.0
        return None if low <= mean <= high else mean


@dataclass
class Drift:
    """Warns once when the mean acceptance rate of a window of texts leaves the expected range.

    So it does when their scores do: of what T keeps, scores may rise towards T while just as much is kept.

    Windows of 200 texts follow one another without overlap, so a million texts are 5,000 tests. If texts are
    independent and like those of the calibration, the chance of any warning among a million is at most 1.1 % for
    smooth distributions of the rate, from .5 ± .15 to .95 ± .05, and 9 % if a few texts stand apart (every twentieth
    at half the rate of all others); twice that where scores are watched, too. A shift by one standard deviation is
    detected, with a chance above 99 %, by the end of the first window that lies wholly after it: within 400 texts. All
    this holds for profiles of 100 texts or more; smaller ones are not watched.

    Tokens drafted beyond a text's end are not accepted, so texts cut much shorter than in calibration differ, too.
    Only texts decoded as the profile says (`coverage`) count.
    """

    calibrated: AcceptanceInfo
    coverage: Coverage
    scores: AcceptanceInfo | None = None
    warned: bool = False

    def __post_init__(self) -> None:
        self._rates = _Windows(self.calibrated)
        self._kept = None if self.scores is None else _Windows(self.scores)

    def applies_to(self, setting: DecodingSetting, request: Request) -> bool:
        """Returns whether a text is decoded as the profile says; T and L are the request's."""
        own = replace(setting, threshold=request.threshold, draft_length=request.draft_length)
        return self.coverage.covers(own)

    def add(self, text: Finished, kept: float | None = None) -> str | None:
        """Returns a warning if this text completes a window outside the range, and None ever after.

        Args:
            kept: how near to T its scores come, see `share_of_threshold`; None: nobody knows.
        """
        if self.warned or not text.drafted:
            return None
        found = self._message("acceptance rate", self.calibrated, self._rates.add(text.accepted / text.drafted))
        if self.scores is not None and self._kept is not None and kept is not None:
            what = f"largest {self.coverage.setting.criterion.score} that kept a token, as a share of T,"
            found = self._message(what, self.scores, self._kept.add(kept)) or found
        self.warned = found is not None
        return found

    def _message(self, what: str, calibrated: AcceptanceInfo, mean: float | None) -> str | None:
        if mean is None:
            return None
        low, high = expected_range(calibrated)
        return (
            f"the {what} was {mean:.1%} over the last {WINDOW} texts, but the profile of {self.coverage.task!r} "
            f"expects {max(low, 0.0):.1%} to {min(high, 1.0):.1%} (it measured {calibrated.mean:.1%} on "
            f"{calibrated.texts} texts): these texts differ from those of the calibration, so its certificate may "
            "not hold; calibrate on texts like these"
        )


def watch(
    drift: Drift | None,
    setting: DecodingSetting,
    requests: Iterable[Request],
    finished: Iterable[FinishedHere],
    stacklevel: int,
) -> None:
    """Adds finished texts to a profile's drift, if there is one, and warns at `stacklevel`.

    `finished` must be in an order that does not depend on lengths, such as that of the requests: in the order in which
    texts finish, the short ones come first.
    """
    if drift is None:
        return
    for request, text in zip(requests, finished, strict=True):
        if not drift.applies_to(setting, request):
            continue
        kept = share_of_threshold(text.interval, request.threshold) if request.threshold > 0 else None
        if (message := drift.add(text, kept)) is not None:
            warnings.warn(message, stacklevel=stacklevel)


GROUP = "fsd_decoding.early_stop"
"""Entry points of this group are called with the predictor's folder, the profile, the target, the draft and the
tokenizer, and return a `StopPolicy`. They raise UsageError if the predictor is not the profile's or not for this
draft."""


def early_stop(profile: ThresholdProfile, target: Any, draft: Any, tokenizer: Any) -> StopPolicy | None:
    """Returns the stop policy of a profile that has a threshold or is a front; None if it has no early stop.

    Raises:
        UsageError: the predictor is missing, altered, or not the one that the profile was calibrated with; or the
            tokenizer or the package of predictors is missing.
    """
    if profile.threshold is None and profile.outcome != "front":
        return None
    if profile.stop_policy is not None:
        profile.require_addons(profile.stop_policy)
        policy = copy.copy(stop_policy_named(profile.stop_policy))
        policy.rules = frozenset({profile.rule})
        return policy
    if profile.early_stop is None:
        return None
    if tokenizer is None:
        raise UsageError("the profile stops drafts early, which needs the tokenizer; pass tokenizer=")
    makers = entry_points(group=GROUP)
    if not makers:
        raise UsageError(
            "the profile stops drafts early, which needs the package fsd_predictors; install the whole of fsd-calib"
        )
    folder = (profile.folder or Path()) / profile.early_stop.predictor
    made: StopPolicy = next(iter(makers)).load()(folder, profile, target, draft, tokenizer)
    return made


def following(profile: ThresholdProfile, decoder: Any = None) -> str:
    """Returns whether decoding is lossless or LOSSY, by which threshold, and what is certified of that.

    Args:
        decoder: the `SpeculativeDecoder` that follows it, whose setting may be another; None: the profile's is run.
    """
    whose = f"profile {'' if profile.file is None else f'{str(profile.file)!r} '}of task {profile.task!r}"
    whose += "" if profile.beams is None else f" ({profile.beams})"
    own = decoder is None or decoder.coverage.covers(decoder.setting)
    if (profile.threshold is None) if own else decoder.setting.lossless:
        why = "which has no threshold" if profile.threshold is None else "with another setting than its own"
        return f"lossless: following {whose}, {why}"
    if not own:
        return _lossy(f"{whose}, with another setting than its own", decoder, decoder.setting.threshold, "")
    assert profile.threshold is not None
    scale = "" if profile.policy is None else f", scaled by {profile.policy}"
    return _lossy(whose, profile, profile.threshold, scale, _certified(profile))


def _lossy(whose: str, by: Any, threshold: float, scale: str, proof: str = "nothing is certified") -> str:
    return f"following {whose}: LOSSY, drafted tokens with {by.score} <= {threshold:.6g}{scale} are accepted; {proof}"


def _certified(profile: ThresholdProfile) -> str:
    certificate = profile.certificate
    absolute = certificate.acc == "absolute"
    bound = certificate.accuracy_lower_bound if absolute else certificate.lower_bound
    bound = bound if certificate.wanted is None else certificate.wanted
    if not (certificate.certified and profile.bound) or bound is None:
        return "nothing is certified"
    kept = "accuracy" if absolute else certificate.acc
    return f"certified to keep {kept} of at least {bound:.4g} in {profile.engine_name}"


_drifts: WeakKeyDictionary[Any, dict[str, Drift]] = WeakKeyDictionary()  # of a target model, by what is followed


class ProfileConfig(NamedTuple):
    """A profile, what it sets, what it certified, and the drift detector for decoding under it."""

    profile: ThresholdProfile
    config: DecodingConfig
    coverage: Coverage
    drift: Drift | None
    doubts: list[str]
    """Warnings of the profile whatever is decoded; see `doubts_of`."""
    of_threshold: str | None
    """A warning where the profile's rule and threshold are used; see `warning_of`."""

    def warnings(self, setting: DecodingSetting) -> list[str]:
        """Returns the warnings for a decoder of this setting, which may be another than the profile's."""
        of_threshold = self.of_threshold if self.coverage.keeps_threshold(setting) else None
        return [*self.doubts, *filter(None, [of_threshold, self.coverage.departure([setting])])]


def profile_config(
    source: Any, models: Sequence[Any], tokenizer: Any | None, allow_edited: bool = False
) -> ProfileConfig:
    """Returns what a profile (or its file) sets.

    Raises:
        UsageError: the profile is for other models, or edited without `allow_edited`, or this version does not know
            its threshold policy.
    """
    loaded = isinstance(source, ThresholdProfile)
    profile = source if loaded else ThresholdProfile.load(source, allow_edited=allow_edited)
    if not allow_edited:
        profile.require_unedited()
    doubts = doubts_of(profile, models, tokenizer)
    config = _with_early_stop(profile, models, tokenizer)
    if isinstance(config.threshold, ThresholdPolicy):
        config.threshold.check(models, tokenizer, profile.rule, profile.score)
    coverage = _coverage(profile, config)
    drift = _drift(profile, models[0], config, coverage)
    return ProfileConfig(profile, config, coverage, drift, doubts, warning_of(profile))


def doubts_of(profile: ThresholdProfile, models: Sequence[Any], tokenizer: Any | None) -> list[str]:
    """Returns warnings of a profile with these models, whatever is decoded. UsageError: it is of other models."""
    own = [profile.digest_doubt(), profile.engine_doubt(OWN_ENGINE)]
    return [*filter(None, own), *profile.compare(models[0], models[1], tokenizer)]


def config_of(profile: ThresholdProfile) -> DecodingConfig:
    """Returns what a profile sets, but for its early stop, which needs the models.

    Raises:
        UsageError: this version does not know its threshold policy, or code of others that it needs is missing or is
            not that.
    """
    followed = profile.followed
    profile.require_addons(followed.rule, followed.score, profile.draft.id if profile.draft.kind == "addon" else "")
    moved = followed.moved
    return DecodingConfig(
        rule=followed.rule, score=followed.score, threshold=-1.0 if moved is None else moved,
        draft_length=followed.draft_length, sampling=Sampling(**profile.sampling.model_dump()),
        seed=profile.seed, on=profile.logits, within_support=profile.within_support,
        tree=followed.tree,
    )  # fmt: skip


def coverage_of(profile: ThresholdProfile, models: Sequence[Any], tokenizer: Any | None) -> Coverage:
    """Returns what a profile certified with its models. UsageError: its predictor cannot be used."""
    return _coverage(profile, _with_early_stop(profile, models, tokenizer))


def _with_early_stop(profile: ThresholdProfile, models: Sequence[Any], tokenizer: Any | None) -> DecodingConfig:
    return replace(config_of(profile), stop_policy=early_stop(profile, models[0], models[1], tokenizer))


def _coverage(profile: ThresholdProfile, config: DecodingConfig) -> Coverage:
    certified = profile.certificate.certified and profile.bound and profile.threshold is not None
    own, followed = profile.beams, profile.followed
    beams = None if own is None else own.model_copy(update={"width": followed.width or own.width})
    return Coverage(
        DecodingSetting.of(config), profile.task, certified, DraftsByRule.of(profile), profile.prompt, beams
    )


def warning_of(profile: ThresholdProfile) -> str | None:
    """Returns a warning for decoding with this profile if its threshold is missing or untested, else None."""
    runs = f"decoding runs the lossless rule {profile.followed.rule!r}"
    if profile.outcome == "untested":
        return f"the profile's threshold for {profile.task!r} was never tested: what it costs in accuracy is not known"
    if profile.outcome == "front":
        return f"the profile is a front for {profile.task!r} and chooses no point of it; {runs}, see its at()"
    if profile.threshold is None and profile.outcome not in MET:
        return f"the profile certifies no threshold for {profile.task!r}; {runs}"
    return None


def _drift(profile: ThresholdProfile, target: Any, config: DecodingConfig, coverage: Coverage) -> Drift | None:
    """Returns one detector per target and profile, however often it is loaded: `generate` loads it at every call."""
    if profile.acceptance is None:
        return None
    plain = profile.followed, config.draft_length, config.sampling, profile.early_stop
    name = f"{profile.created} {profile.acceptance} {plain}"
    mine = _drifts.setdefault(target, {})
    if name not in mine:
        mine[name] = Drift(profile.acceptance, coverage, profile.kept_scores)
    return mine[name]
