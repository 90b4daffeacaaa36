"""The registry of shapes that an identity can name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fsd_common.errors import UsageError
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
"""All shapes, by name. A new shape that should be calibrated, cached and stored is added here."""


def policy_named(identity: str) -> ScalePolicy:
    """Builds the shape of an identity, with T = 0: `at` sets another.

    Raises:
        UsageError: the identity is malformed, or no shape of this version has it.
    """
    try:
        description: object = json.loads(identity)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the policy is {identity!r:.80}; it must be a policy's identity, as JSON") from error
    return _build(description)


def _build(description: object) -> ScalePolicy:
    if not isinstance(description, Mapping) or not isinstance(description.get("name"), str):
        raise UsageError(f"the policy is {description!r:.80}; it must be a policy's identity, as JSON")
    name, version = description["name"], description.get("version")
    if name not in KNOWN:
        raise UsageError(f"unknown policy {name!r:.60}; known: {', '.join(KNOWN)}")
    if version != KNOWN[name].version:
        raise UsageError(
            f"policy {name!r} has version {version}, this fsd-calib has version {KNOWN[name].version}; calibrate again"
        )
    parameters = {key: _build_nested(value) for key, value in description.items() if key not in ("name", "version")}
    try:
        return KNOWN[name].of(parameters).at(0.0)
    except UsageError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UsageError(
            f"policy {name!r} has parameters {parameters!r:.80}, which do not describe one; calibrate again"
        ) from error


def _build_nested(value: Any) -> Any:
    """Returns a parameter with the policies in it built."""
    if isinstance(value, Mapping):
        return _build(value)
    return [_build_nested(item) for item in value] if isinstance(value, list) else value
