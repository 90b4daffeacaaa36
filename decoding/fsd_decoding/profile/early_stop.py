"""Early stop of a profile: builds the stop policy from the predictor that the profile names.

Predictors are in another package, which depends on this one; so it is found by its entry point.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fsd_common.errors import UsageError
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.threshold_profile import ThresholdProfile

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
    if profile.early_stop is None or (profile.threshold is None and profile.outcome != "front"):
        return None
    if tokenizer is None:
        raise UsageError("the profile stops drafts early, which needs the tokenizer; pass tokenizer=")
    makers = entry_points(group=GROUP)
    if not makers:
        raise UsageError(
            "the profile stops drafts early, which needs the package fsd_predictors; install the whole of fsd-calib"
        )
    folder = (profile.folder or Path()) / profile.early_stop.predictor
    policy: StopPolicy = next(iter(makers)).load()(folder, profile, target, draft, tokenizer)
    return policy
