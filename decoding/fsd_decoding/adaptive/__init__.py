"""Threshold policies: thresholds that move. What one may do is in `fsd_decoding.threshold_policy`."""

from __future__ import annotations

from fsd_decoding.adaptive.constant import Constant
from fsd_decoding.adaptive.divergence_budget import DivergenceBudget
from fsd_decoding.adaptive.entropy_scaled import EntropyScaled
from fsd_decoding.adaptive.extremes import Max, Min
from fsd_decoding.adaptive.known import policy_named
from fsd_decoding.adaptive.per_domain import PerDomain
from fsd_decoding.adaptive.per_prompt import PerPrompt
from fsd_decoding.adaptive.schedule import Schedule
from fsd_decoding.adaptive.speed_budget import SpeedBudget
from fsd_decoding.adaptive.switching import Switch
from fsd_decoding.threshold_policy import (
    Begun,
    RoundOutcome,
    RoundState,
    ScalePolicy,
    ThresholdPolicy,
)

__all__ = [
    "Begun",
    "Constant",
    "DivergenceBudget",
    "EntropyScaled",
    "Max",
    "Min",
    "PerDomain",
    "PerPrompt",
    "RoundOutcome",
    "RoundState",
    "ScalePolicy",
    "Schedule",
    "SpeedBudget",
    "Switch",
    "ThresholdPolicy",
    "policy_named",
]
