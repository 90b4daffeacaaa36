"""The early stop that a profile names, for `fsd_decoding.early_stop`, which finds this by its entry point.

Knows profiles and predictors' folders. Knows nothing of rules or of calibration.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from fsd_collectors.replay.cost import CostModel
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_predictors.predictor import Predictor
from fsd_predictors.stopping.of_predictor import Stopper
from fsd_predictors.stopping.rates import Rates


def early_stop(folder: Path, profile: ThresholdProfile, target: Any, draft: Any, tokenizer: Any) -> StopPolicy:
    """A policy for the profile's divergence. The profile was held against the models, and names its predictor's
    fingerprint, so the predictor is of them too.

    Raises:
        UsageError: there is no predictor, it was altered, it is another one, or it reads the draft's hidden state and
            there is none to be seen.
    """
    assert profile.early_stop is not None
    return stop_policy(folder, profile.early_stop, profile.divergence, draft, tokenizer)


def stop_policy(folder: Path, info: EarlyStopInfo, divergence: str, draft: Any, tokenizer: Any) -> StopPolicy:
    """As `early_stop`, for a divergence that the predictor in `folder` has rates for."""
    predictor = _loaded(folder.resolve(), info.fingerprint)
    return Stopper(predictor, divergence, _rates(info, divergence), tokenizer).in_loop(draft)


def _rates(info: EarlyStopInfo, divergence: str) -> Rates:
    if divergence not in info.rates:
        raise UsageError(f"the profile has no rates for divergence {divergence!r}; calibrate again")
    found, costs = info.rates[divergence], CostModel(info.draft_step, info.verify, info.position)
    return Rates(found.shares, found.tokens_per_second, costs)


@lru_cache(maxsize=8)
def _loaded(folder: Path, fingerprint: str) -> Predictor:
    """Once: transformers' `generate` follows a profile anew at every call."""
    predictor = Predictor.load(folder)
    if predictor.fingerprint != fingerprint:
        raise UsageError(
            f"the predictor in {str(folder)!r} has fingerprint {predictor.fingerprint[:12]}, the profile was "
            f"calibrated with {fingerprint[:12]}; put that one there, or calibrate again"
        )
    return predictor
