"""Certifying the setting of a profile anew, for instance with another engine: nothing is searched."""

from __future__ import annotations

from typing import Any

from fsd_calib.engines.configuration import Configuration
from fsd_decoding.config import DecodingConfig
from fsd_decoding.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.sampling import Sampling


def setting_of(profile: ThresholdProfile) -> Configuration:
    """Returns the setting of a profile.

    Raises:
        UsageError: It has no threshold, or ends drafts by a predictor, which is not part of a setting.
    """
    if profile.threshold is None:
        raise UsageError(
            f"the profile of {profile.task!r} has no threshold (its outcome is {profile.outcome}), so there is nothing "
            "to certify; calibrate instead"
        )
    if profile.early_stop is not None:
        raise UsageError(
            f"the profile of {profile.task!r} ends drafts by a predictor, whose costs are of its own calibration; "
            "calibrate with --predictor instead"
        )
    policy = None if profile.policy is None else profile.policy.identity
    return Configuration(profile.rule, profile.divergence, profile.draft_length, profile.threshold, policy)


def decoding_of(profile: ThresholdProfile) -> DecodingConfig:
    """Returns the settings under which a profile's setting is certified: its own, with a search space of that alone."""
    setting = setting_of(profile)
    moved: Any = None if setting.policy is None else setting.moved
    return DecodingConfig(
        rule=setting.rule, divergence=setting.divergence, draft_length=(setting.draft_length,),
        sampling=Sampling(**profile.sampling.model_dump()), seed=profile.seed, threshold_policy=moved,
    )  # fmt: skip
