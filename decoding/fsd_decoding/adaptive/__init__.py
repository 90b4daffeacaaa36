"""Threshold policies, which move T while a text is decoded; `fsd_decoding.policies.threshold` has their interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fsd_decoding.adaptive.divergence_budget import DivergenceBudget
    from fsd_decoding.adaptive.per_domain import PerDomain
    from fsd_decoding.adaptive.speed_budget import SpeedBudget
    from fsd_decoding.policies.composed import Max, Min
    from fsd_decoding.policies.constant import Constant
    from fsd_decoding.policies.entropy_scaled import EntropyScaled
    from fsd_decoding.policies.per_prompt import PerPrompt
    from fsd_decoding.policies.registry import policy_named
    from fsd_decoding.policies.rounds import NewRequests, RoundOutcome, RoundState
    from fsd_decoding.policies.schedule import Schedule
    from fsd_decoding.policies.switch import Switch
    from fsd_decoding.policies.threshold import ScalePolicy, ThresholdPolicy

__all__ = [
    "Constant",
    "DivergenceBudget",
    "EntropyScaled",
    "Max",
    "Min",
    "NewRequests",
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

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "NewRequests": "fsd_decoding.policies.rounds",
        "Constant": "fsd_decoding.policies.constant",
        "DivergenceBudget": "fsd_decoding.adaptive.divergence_budget",
        "EntropyScaled": "fsd_decoding.policies.entropy_scaled",
        "Max": "fsd_decoding.policies.composed",
        "Min": "fsd_decoding.policies.composed",
        "PerDomain": "fsd_decoding.adaptive.per_domain",
        "PerPrompt": "fsd_decoding.policies.per_prompt",
        "RoundOutcome": "fsd_decoding.policies.rounds",
        "RoundState": "fsd_decoding.policies.rounds",
        "ScalePolicy": "fsd_decoding.policies.threshold",
        "Schedule": "fsd_decoding.policies.schedule",
        "SpeedBudget": "fsd_decoding.adaptive.speed_budget",
        "Switch": "fsd_decoding.policies.switch",
        "ThresholdPolicy": "fsd_decoding.policies.threshold",
        "policy_named": "fsd_decoding.policies.registry",
    },
)
