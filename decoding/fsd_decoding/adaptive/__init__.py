"""Threshold policies, which move T while a text is decoded; `fsd_decoding.policies.threshold` has their interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fsd_decoding.adaptive.divergence_budget import DivergenceBudget
    from fsd_decoding.adaptive.per_domain import PerDomain
    from fsd_decoding.adaptive.speed_budget import SpeedBudget
    from fsd_decoding.policies.composed import Max, Min, Switch, policy_named
    from fsd_decoding.policies.markers import thinking_markers
    from fsd_decoding.policies.phase import Phase
    from fsd_decoding.policies.shapes import Constant, EntropyScaled, PerPrompt, Schedule
    from fsd_decoding.policies.threshold import (
        NewRequests,
        RoundOutcome,
        RoundState,
        ScalePolicy,
        ThresholdPolicy,
        TracedText,
    )

__all__ = [
    "Constant",
    "DivergenceBudget",
    "EntropyScaled",
    "Max",
    "Min",
    "NewRequests",
    "PerDomain",
    "PerPrompt",
    "Phase",
    "RoundOutcome",
    "RoundState",
    "ScalePolicy",
    "Schedule",
    "SpeedBudget",
    "Switch",
    "ThresholdPolicy",
    "TracedText",
    "policy_named",
    "thinking_markers",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "NewRequests": "fsd_decoding.policies.threshold",
        "Constant": "fsd_decoding.policies.shapes",
        "DivergenceBudget": "fsd_decoding.adaptive.divergence_budget",
        "EntropyScaled": "fsd_decoding.policies.shapes",
        "Max": "fsd_decoding.policies.composed",
        "Min": "fsd_decoding.policies.composed",
        "PerDomain": "fsd_decoding.adaptive.per_domain",
        "PerPrompt": "fsd_decoding.policies.shapes",
        "Phase": "fsd_decoding.policies.phase",
        "RoundOutcome": "fsd_decoding.policies.threshold",
        "RoundState": "fsd_decoding.policies.threshold",
        "ScalePolicy": "fsd_decoding.policies.threshold",
        "Schedule": "fsd_decoding.policies.shapes",
        "SpeedBudget": "fsd_decoding.adaptive.speed_budget",
        "Switch": "fsd_decoding.policies.composed",
        "ThresholdPolicy": "fsd_decoding.policies.threshold",
        "TracedText": "fsd_decoding.policies.threshold",
        "policy_named": "fsd_decoding.policies.composed",
        "thinking_markers": "fsd_decoding.policies.markers",
    },
)
