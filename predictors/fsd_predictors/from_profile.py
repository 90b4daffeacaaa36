"""Early stop by the predictor that a profile names; the plugin behind the entry point `fsd_decoding.early_stop`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from fsd_collectors.replay.cost import CostModel
from fsd_common.errors import UsageError
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_predictors.predictor import Predictor
from fsd_predictors.stopping.of_predictor import Stopper
from fsd_predictors.stopping.rule import Rates


def early_stop(folder: Path, profile: ThresholdProfile, target: Any, draft: Any, tokenizer: Any) -> StopPolicy:
    """Returns the stop policy of a profile's predictor for the profile's score.

    The models are not compared with the predictor's: loading the profile has checked them, and the profile holds the
    predictor's fingerprint.

    Args:
        folder: the predictor's folder.
        profile: the profile, whose `early_stop` is set.

    Raises:
        UsageError: the predictor is missing, was altered or is another one; or it reads the draft's hidden state and
            the draft has none that can be read.
    """
    assert profile.early_stop is not None
    return stop_policy(folder, profile.early_stop, profile.score, draft, tokenizer)


def stop_policy(folder: Path, info: EarlyStopInfo, score: str, draft: Any, tokenizer: Any) -> StopPolicy:
    """Returns the stop policy of the predictor in `folder` for a score. Raises UsageError as `early_stop` does."""
    predictor = _load(folder.resolve(), info.fingerprint)
    return Stopper(predictor, score, _rates(info, score), tokenizer).in_loop(draft)


def _rates(info: EarlyStopInfo, score: str) -> Rates:
    if score not in info.rates:
        raise UsageError(f"the profile has no rates for score {score!r}; calibrate again")
    rates, costs = info.rates[score], CostModel(info.draft_step, info.verify, info.position)
    return Rates(rates.shares, rates.tokens_per_second, costs)


@lru_cache(maxsize=8)
def _load(folder: Path, fingerprint: str) -> Predictor:
    """Loads a predictor once: transformers' `generate` reads its profile anew at every call."""
    predictor = Predictor.load(folder)
    if predictor.fingerprint != fingerprint:
        raise UsageError(
            f"the predictor in {str(folder)!r} has fingerprint {predictor.fingerprint[:12]}, the profile was "
            f"calibrated with {fingerprint[:12]}; put that one there, or calibrate again"
        )
    return predictor
