"""T of every drafted token: the request's, times the scale of the profile's policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsd_calib.vllm_plugin.followed import Followed
from fsd_common.errors import UsageError
from fsd_decoding.policies.shapes import Constant, EntropyScaled, Schedule
from fsd_decoding.policies.threshold import ScalePolicy


@dataclass(frozen=True)
class StepTokens:
    """The N drafted tokens of a step, as far as the supported policies look at them; what they do not is None."""

    places: Tensor | None  # (N,) positions in their completions, from 0
    target_entropy: Tensor | None  # (N,) in nats, of raw logits
    draft_entropy: Tensor | None  # (N,)


def policy_of(followed: Followed) -> ScalePolicy | None:
    """Returns the policy that scales T; None where T is constant.

    Raises:
        UsageError: the policy is none that works on the tokens of a step of vLLM.
    """
    if followed.threshold is None or followed.policy is None:
        return None
    policy = followed.policy.at(followed.threshold)
    if isinstance(policy, Constant):
        return None
    if isinstance(policy, Schedule) or (isinstance(policy, EntropyScaled) and policy.signal != "last"):
        return policy
    raise UsageError(
        f"the profile's threshold policy is {followed.policy}; vLLM can follow a constant T, 'schedule' and 'entropy' "
        "of the target or the draft: calibrate with one of these as --threshold-policy"
    )


def scaled(thresholds: Tensor, policy: ScalePolicy, tokens: StepTokens) -> Tensor:
    """Returns the T (N,) of every token from that of its request (N,)."""
    state: Any = tokens  # the supported policies read nothing else of a round
    return torch.where(thresholds > 0, thresholds * policy.scales(state), thresholds)
