"""What a request may choose: `vllm_xargs` with "fsd" or "fsd_threshold"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fsd_common.errors import UsageError

EXACT = -1.0  # T of requests that are decoded exactly

_SWITCH, _THRESHOLD = "fsd", "fsd_threshold"


def requested_threshold(extra_args: Mapping[str, Any] | None, default: float) -> float:
    """Returns the T that a request is decoded at.

    Args:
        extra_args: the request's `vllm_xargs`, in Python `SamplingParams.extra_args`.
        default: the profile's T.

    Raises:
        UsageError: an option of the plugin is unknown, has another value than it may have, or contradicts another.
    """
    given = {name: value for name, value in (extra_args or {}).items() if str(name).startswith(_SWITCH)}
    if unknown := [name for name in given if name not in (_SWITCH, _THRESHOLD)]:
        raise UsageError(f"vllm_xargs has {unknown[0]!r:.60}; of fsd it may have {_SWITCH!r} and {_THRESHOLD!r}")
    switch = given.get(_SWITCH, "on")
    if switch not in ("on", "off"):
        raise UsageError(f"{_SWITCH} in vllm_xargs is {switch!r:.60}; it must be 'off' (decode exactly) or 'on'")
    if _THRESHOLD not in given:
        return EXACT if switch == "off" else default
    threshold = given[_THRESHOLD]
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not _finite(threshold):
        raise UsageError(
            f"{_THRESHOLD} in vllm_xargs is {threshold!r:.60}; it must be a finite number, the largest divergence to "
            "accept"
        )
    if switch == "off":
        raise UsageError(f"vllm_xargs has {_SWITCH} 'off' and {_THRESHOLD}; give one of them")
    return float(threshold)


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an int that no float can hold
        return False
