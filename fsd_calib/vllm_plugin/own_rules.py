"""vLLM's own rules beside its standard test: FLy and block verification, chosen by "rejection_sample_method".

Where one of them decides, FSD is off: the profile has to be of that rule, and the plugin checks that it is followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fsd_calib.vllm_plugin import METHOD
from fsd_calib.vllm_plugin.settings import EXACT
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.scores import Fly, score_named

_OPTION = f'"{METHOD}"'


def own_rule(config: Any) -> str | None:
    """Returns the rule of vLLM's own by which an engine keeps drafted tokens; None: its standard test."""
    method: str = config.speculative_config.rejection_sample_method
    return None if method == "standard" else method


def followed_threshold(profile: ThresholdProfile) -> float:
    """Returns the T that a rule of vLLM's own gives every request; below 0: they are decoded exactly."""
    return EXACT if profile.threshold is None else profile.threshold


def fly_options(score: Fly, threshold: float) -> dict[str, Any]:
    """Returns what vLLM's FLy is told, so that it keeps what a score of `fly` keeps at T."""
    return {
        "fly_entropy_threshold": max(score.most - threshold, 0.0),
        "fly_window_size": score.window,
        "fly_entropy_top_k": int(score.values[1]),
    }


def fly_options_of(profile: ThresholdProfile) -> dict[str, Any]:
    """Returns the same for a profile of `fly`."""
    score = score_named(profile.score)
    assert isinstance(score, Fly)
    return fly_options(score, followed_threshold(profile))


def measured_fly(score: Fly, threshold: float | None) -> dict[str, Any]:
    """Returns what vLLM's FLy is told while a calibration measures a setting. threshold: None: decoding is exact."""
    if threshold is None:
        return {**fly_options(score, 0.0), "fly_entropy_threshold": math.inf}  # which no entropy reaches
    return fly_options(score, threshold)


def by_own_fly(profile: ThresholdProfile) -> bool:
    """Whether vLLM's own FLy decoded where a profile was certified."""
    return profile.engine is not None and profile.engine.arguments.get(METHOD) == "fly"


def obstacles(config: Any, profile: ThresholdProfile) -> Iterator[str]:
    """Yields why an engine with a rule of vLLM's own does not follow the profile."""
    method = own_rule(config)
    if method == "fly":
        yield from _against_fly(config.speculative_config, profile)
    elif method == "block":
        yield from _against_blocks(config, profile)
    else:
        yield (
            f"{_OPTION} is {method!r} in --speculative-config, which keeps drafted tokens whatever they are; leave it "
            "out"
        )


def _against_fly(spec: Any, profile: ThresholdProfile) -> Iterator[str]:
    score = score_named(profile.score)
    if profile.threshold is None or not isinstance(score, Fly):
        yield (
            f"{_OPTION} is 'fly' in --speculative-config, and the profile is {_in_words(profile)}; leave it out, or "
            "calibrate with --score fly"
        )
        return
    if profile.policy is not None and profile.policy.name != "constant":
        yield (
            f"{_OPTION} is 'fly' in --speculative-config, which has one T for all tokens, and the profile's threshold "
            f"policy is {profile.policy}; leave it out, or calibrate with a constant T"
        )
    for name, wanted in fly_options(score, profile.threshold).items():
        given = getattr(spec, name)
        if not math.isclose(given, wanted, rel_tol=1e-6, abs_tol=1e-9):  # engines round to fp32
            yield (
                f'"{name}" is {given:.9g} in --speculative-config, and {wanted:.9g} is what the profile\'s '
                f"{profile.score} <= {profile.threshold:g} says; use the options of: fsd-profile export --to vllm"
            )


def _against_blocks(config: Any, profile: ThresholdProfile) -> Iterator[str]:
    if profile.threshold is not None or profile.followed.rule != "sd-block":
        yield (
            f"{_OPTION} is 'block' in --speculative-config, and the profile is {_in_words(profile)}, which is not "
            "defined over whole blocks; leave it out"
        )
    elif not config.use_v2_model_runner:
        yield (
            f"{_OPTION} is 'block' in --speculative-config, which vLLM's V1 model runner ignores; leave it out, or let "
            "the V2 runner run: VLLM_USE_V2_MODEL_RUNNER=1"
        )


def _in_words(profile: ThresholdProfile) -> str:
    if profile.threshold is None:
        return f"of the lossless rule {profile.followed.rule!r}"
    return f"of {profile.score} <= {profile.threshold:g}"
