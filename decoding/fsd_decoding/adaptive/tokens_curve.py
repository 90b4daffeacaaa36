"""How many tokens a round brings at each T, as a profile measured it, and which T brings so many.

Knows a profile's curve and the lines through its points. Knows neither clocks nor rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fsd_decoding.errors import UsageError
from fsd_decoding.profile import ThresholdProfile
from fsd_decoding.profile_choosing import corrected
from fsd_decoding.profile_curve import CurvePoint, arm_of

_LOSSLESS = -1e-9  # D is never negative
_STEP = 1e-3  # tokens a round between two T that measured alike: leads from one to the other


@dataclass(frozen=True)
class TokensCurve:
    """Lines between points, both coordinates rising."""

    thresholds: tuple[float, ...]
    tokens: tuple[float, ...]  # a round, of one stream

    @classmethod
    def of(cls, profile: ThresholdProfile, beyond: bool) -> TokensCurve:
        """From the lossless rule up to the profile's T, or `beyond` it to the largest T measured.

        Where measurements fall while T rises they are evened out, each weighing its problems (isotonic regression).

        UsageError: there is no such T.
        """
        from scipy.optimize import isotonic_regression

        points = reached(profile, beyond)
        tokens = [_lossless(profile), *(p.tokens_per_round for p in points)]
        weights = [max(p.problems for p in points), *(p.problems for p in points)]
        rising = isotonic_regression(np.array(tokens), weights=np.array(weights)).x
        steps = _STEP * np.arange(len(rising))
        return cls((_LOSSLESS, *(p.threshold or 0.0 for p in points)), tuple((rising + steps).tolist()))


class Inverse:
    """T by tokens a round, on a device."""

    def __init__(self, curve: TokensCurve, device: torch.device) -> None:
        shape = torch.tensor([curve.thresholds, curve.tokens], dtype=torch.float64).to(device)
        rise, self._widths = shape.diff()
        self._starts, self._slopes = shape[1, :-1], rise / self._widths
        self._lowest = curve.thresholds[0]

    def __call__(self, tokens: Tensor) -> Tensor:
        """() -> (); beyond the curve's ends the T there."""
        along = (tokens - self._starts).clamp_min(0.0).minimum(self._widths)  # how far on each line
        found: Tensor = (along * self._slopes).sum() + self._lowest
        return found


def reached(profile: ThresholdProfile, beyond: bool) -> Sequence[CurvePoint]:
    """The profile's own points that T may move between, by T. UsageError: there are none."""
    arm = arm_of(profile.rule, profile.divergence, profile.draft_length, policy=None)
    mine = {p.threshold: p for p in corrected(profile.curve) if p.arm == arm and p.threshold is not None}
    most = math.inf if beyond else profile.threshold
    if most is None:
        raise UsageError(
            f"the profile of {profile.task!r} has no threshold (outcome {profile.outcome!r}), T has nowhere to move; "
            "calibrate for one, or let T go beyond what is certified with beyond=True"
        )
    points = [mine[threshold] for threshold in sorted(mine) if threshold <= most]
    if not points:
        raise UsageError(f"the profile of {profile.task!r} measured no threshold of its own rule; calibrate again")
    return points


def _lossless(profile: ThresholdProfile) -> float:
    """Tokens a round where T accepts nothing; `fsd` then is the target alone."""
    if profile.rule == "fsd":
        return 1.0
    own = [p for p in corrected(profile.curve) if p.draft is None]
    found = [p for p in own if p.rule == "sd" and p.draft_length == profile.draft_length]
    return found[0].tokens_per_round if found else profile.tokens_per_round.sd
