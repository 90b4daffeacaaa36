"""The decoding configuration that a profile sets, with what it certified and what watches decoding under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from fsd_decoding.config import DecodingConfig
from fsd_decoding.config_resolution import resolve
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.profile.coverage import Coverage, DecodingSetting
from fsd_decoding.profile.draft_shapes import DraftsByRule
from fsd_decoding.profile.drift import Drift
from fsd_decoding.profile.early_stop import early_stop
from fsd_decoding.profile.outcome import MET
from fsd_decoding.profile.parts import OWN_ENGINE
from fsd_decoding.profile.policy import moved
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.sampling import Sampling

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
        config.threshold.check(models, tokenizer, profile.rule, profile.divergence)
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
        UsageError: this version does not know its threshold policy.
    """
    return DecodingConfig(
        rule=profile.effective_rule, divergence=profile.divergence,
        threshold=-1.0 if profile.threshold is None else moved(profile.threshold, profile.policy),
        draft_length=profile.effective_draft_length, sampling=Sampling(**profile.sampling.model_dump()),
        seed=profile.seed, on=profile.logits, within_support=profile.within_support,
        tree=profile.effective_tree,
    )  # fmt: skip


def coverage_of(profile: ThresholdProfile, models: Sequence[Any], tokenizer: Any | None) -> Coverage:
    """Returns what a profile certified with its models. UsageError: its predictor cannot be used."""
    return _coverage(profile, _with_early_stop(profile, models, tokenizer))


def _with_early_stop(profile: ThresholdProfile, models: Sequence[Any], tokenizer: Any | None) -> DecodingConfig:
    return replace(config_of(profile), stop_policy=early_stop(profile, models[0], models[1], tokenizer))


def _coverage(profile: ThresholdProfile, config: DecodingConfig) -> Coverage:
    certified = profile.certificate.certified and profile.bound and profile.threshold is not None
    return Coverage(_setting(config), profile.task, certified, DraftsByRule.of(profile), profile.prompt)


def _setting(config: DecodingConfig) -> DecodingSetting:
    resolved = resolve(config)
    return DecodingSetting.of(resolved, resolved.threshold, resolved.draft_length)


def warning_of(profile: ThresholdProfile) -> str | None:
    """Returns a warning for decoding with this profile if its threshold is missing or untested, else None."""
    runs = f"decoding runs the lossless rule {profile.effective_rule!r}"
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
    plain = config.rule, profile.configuration, config.draft_length, config.sampling, profile.early_stop
    name = f"{profile.created} {profile.acceptance} {plain}"
    mine = _drifts.setdefault(target, {})
    if name not in mine:
        mine[name] = Drift(profile.acceptance, coverage)
    return mine[name]
