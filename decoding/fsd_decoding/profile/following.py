"""What is said where a profile is followed: one line, the same in every program that follows profiles."""

from __future__ import annotations

from typing import Any

from fsd_decoding.profile.threshold_profile import ThresholdProfile


def following(profile: ThresholdProfile, decoder: Any = None) -> str:
    """Returns whether decoding is lossless or LOSSY, by which threshold, and what is certified of that.

    Args:
        decoder: the `SpeculativeDecoder` that follows it, whose setting may be another; None: the profile's is run.
    """
    whose = f"profile {'' if profile.file is None else f'{str(profile.file)!r} '}of task {profile.task!r}"
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
    return (
        f"following {whose}: LOSSY, drafted tokens with {by.divergence} <= {threshold:.6g}{scale} are accepted; {proof}"
    )


def _certified(profile: ThresholdProfile) -> str:
    certificate = profile.certificate
    absolute = certificate.acc == "absolute"
    bound = certificate.accuracy_lower_bound if absolute else certificate.lower_bound
    if not (certificate.certified and profile.bound) or bound is None:
        return "nothing is certified"
    kept = "accuracy" if absolute else certificate.acc
    return f"certified to keep {kept} of at least {bound:.4g} in {profile.engine_name}"
