"""The decoding configuration that a profile sets, and the drift detector that watches decoding under it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from fsd_decoding.config import DecodingConfig
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.profile.drift import Drift
from fsd_decoding.profile.early_stop import early_stop
from fsd_decoding.profile.policy import moved
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.sampling import Sampling

_drifts: WeakKeyDictionary[Any, dict[str, Drift]] = WeakKeyDictionary()  # of a target model, by what is followed


def profile_config(
    source: Any, models: Sequence[Any], tokenizer: Any | None, stacklevel: int, allow_edited: bool = False
) -> tuple[DecodingConfig, Drift | None]:
    """Returns the configuration that a profile (or its file) sets, and the drift detector for decoding under it.

    Warns, at `stacklevel`, if its threshold is missing or untested, or may not be the certified one.

    Raises:
        UsageError: the profile is for other models, or edited without `allow_edited`, or this version does not know
            its threshold policy.
    """
    loaded = isinstance(source, ThresholdProfile)
    profile = source if loaded else ThresholdProfile.load(source, allow_edited=allow_edited)
    doubts = [profile.check_digest(allow_edited=allow_edited), warning_of(profile)]
    profile.check(models[0], models[1], tokenizer)
    for doubt in filter(None, doubts):
        warnings.warn(doubt, stacklevel=stacklevel)
    threshold = -1.0 if profile.threshold is None else moved(profile.threshold, profile.policy)
    if isinstance(threshold, ThresholdPolicy):
        threshold.check(models, tokenizer, profile.rule, profile.divergence)
    config = DecodingConfig(
        rule=profile.effective_rule, divergence=profile.divergence, threshold=threshold,
        draft_length=profile.effective_draft_length, sampling=Sampling(**profile.sampling.model_dump()),
        seed=profile.seed, stop_policy=early_stop(profile, models[0], models[1], tokenizer), on=profile.logits,
        within_support=profile.within_support,
    )  # fmt: skip
    return config, _drift(profile, models[0], config)


def warning_of(profile: ThresholdProfile) -> str | None:
    """Returns a warning for decoding with this profile if its threshold is missing or untested, else None."""
    runs = f"decoding runs the lossless rule {profile.effective_rule!r}"
    if profile.outcome == "untested":
        return f"the profile's threshold for {profile.task!r} was never tested: what it costs in accuracy is not known"
    if profile.outcome == "front":
        return f"the profile is a front for {profile.task!r} and chooses no point of it; {runs}, see its at()"
    if profile.threshold is None and not profile.met:
        return f"the profile certifies no threshold for {profile.task!r}; {runs}"
    return None


def _drift(profile: ThresholdProfile, target: Any, config: DecodingConfig) -> Drift | None:
    """Returns one detector per target and profile, however often it is loaded: `generate` loads it at every call."""
    if profile.acceptance is None:
        return None
    watched: dict[str, Any] = {
        "rule": config.rule, "threshold": config.threshold, "draft_length": config.draft_length,
        "sampling": config.sampling, "policy": config.stop_policy,
    }  # fmt: skip
    plain = watched | {"threshold": profile.configuration, "policy": profile.early_stop}
    name = f"{profile.created} {profile.acceptance} {plain}"
    mine = _drifts.setdefault(target, {})
    if name not in mine:
        mine[name] = Drift(profile.acceptance, profile.task, **watched)
    return mine[name]
