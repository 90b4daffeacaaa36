"""The early stop that a profile names: found by its folder, made by whichever package knows predictors.

Knows where the predictor lies and which entry point makes a stop policy of it. Knows nothing of predictors: imports go
the other way, so the package that does is found by its entry point.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fsd_decoding.errors import UsageError
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.threshold_profile import ThresholdProfile

GROUP = "fsd_decoding.early_stop"
"""Entry points here are called with the predictor's folder, the profile, the target, the draft and the tokenizer, and
give a `StopPolicy`; UsageError where the predictor is not the profile's, or not for this draft."""


def early_stop(profile: ThresholdProfile, target: Any, draft: Any, tokenizer: Any) -> StopPolicy | None:
    """What ends drafts early where the profile's threshold is used, or any of a front; None: nothing does.

    Raises:
        UsageError: the predictor is missing, altered, or another one than the profile was calibrated with.
    """
    if profile.early_stop is None or (profile.threshold is None and profile.outcome != "front"):
        return None
    if tokenizer is None:
        raise UsageError("the profile stops drafts early, which needs the tokenizer; give tokenizer=")
    found = entry_points(group=GROUP)
    if not found:
        raise UsageError("the profile stops drafts early, which fsd_predictors does; install fsd-calib whole")
    folder = (profile.folder or Path()) / profile.early_stop.predictor
    policy: StopPolicy = next(iter(found)).load()(folder, profile, target, draft, tokenizer)
    return policy
