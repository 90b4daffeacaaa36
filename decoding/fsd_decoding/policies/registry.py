"""The shapes that an identity can name. Knows which there are, and nothing of what they do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fsd_decoding.errors import UsageError
from fsd_decoding.policies.composed import ScaledMax, ScaledMin
from fsd_decoding.policies.constant import Constant
from fsd_decoding.policies.entropy_scaled import EntropyScaled
from fsd_decoding.policies.per_prompt import PerPrompt
from fsd_decoding.policies.scale import Shape
from fsd_decoding.policies.schedule import Schedule
from fsd_decoding.policies.switch import ScaledSwitch
from fsd_decoding.policies.threshold import ScalePolicy

KNOWN: Mapping[str, type[Shape]] = {
    shape.name: shape for shape in (Constant, Schedule, EntropyScaled, PerPrompt, ScaledMin, ScaledMax, ScaledSwitch)
}
"""Where a shape is added that can be calibrated, cached and stored."""


def policy_named(identity: str) -> ScalePolicy:
    """The shape of an identity, with T = 0: `at` gives it another. UsageError: there is no such one."""
    try:
        described: object = json.loads(identity)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the policy is {identity!r:.80}; it must be the identity of one, as JSON") from error
    return _built(described)


def _built(described: object) -> ScalePolicy:
    if not isinstance(described, Mapping) or not isinstance(described.get("name"), str):
        raise UsageError(f"the policy is {described!r:.80}; it must be the identity of one, as JSON")
    name, version = described["name"], described.get("version")
    if name not in KNOWN:
        raise UsageError(f"unknown policy {name!r:.60}; known: {', '.join(KNOWN)}")
    if version != KNOWN[name].version:
        raise UsageError(f"policy {name!r} is of version {version}, here it is {KNOWN[name].version}; calibrate again")
    parameters = {key: _inner(value) for key, value in described.items() if key not in ("name", "version")}
    try:
        return KNOWN[name].of(parameters).at(0.0)
    except UsageError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UsageError(f"policy {name!r} has parameters {parameters!r:.80}; they are not those of one") from error


def _inner(value: Any) -> Any:
    """Policies within a parameter, built."""
    if isinstance(value, Mapping):
        return _built(value)
    return [_inner(one) for one in value] if isinstance(value, list) else value
