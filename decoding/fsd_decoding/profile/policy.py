"""The policy of a profile: the name and parameters from which a scale policy is rebuilt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from fsd_decoding.profile.parts import Natural, Part

if TYPE_CHECKING:
    from fsd_decoding.policies.threshold import ScalePolicy

_LONGEST = 60  # characters of parameters that are shown


class PolicyInfo(Part):
    """The shape of a policy that multiplies T by a scale: everything but T."""

    name: str
    """Name of the policy."""
    version: Natural
    """Version of its definition."""
    parameters: dict[str, JsonValue]
    """Its numbers, by name."""

    @classmethod
    def of(cls, identity: str) -> Self:
        parameters = json.loads(identity)
        return cls(name=parameters.pop("name"), version=parameters.pop("version"), parameters=parameters)

    @property
    def identity(self) -> str:
        """The `ScalePolicy.identity` of the policy."""
        return json.dumps({"name": self.name, "version": self.version, **self.parameters}, sort_keys=True)

    def at(self, threshold: float) -> ScalePolicy:
        """Returns the policy with this T. Raises UsageError if there is none of that name and version."""
        from fsd_decoding.policies.registry import policy_named

        return policy_named(self.identity).at(threshold)

    def __str__(self) -> str:
        """The name with its parameters, or with a digest of them if they are long."""
        shown = _shown(self.parameters)
        if len(shown) > _LONGEST:
            shown = hashlib.sha256(self.identity.encode()).hexdigest()[:8]
        return f"{self.name} ({shown})"


def brief(identity: str) -> str:
    """Returns a short description of the policy with this identity."""
    return str(PolicyInfo.of(identity))


def moved(threshold: float, policy: PolicyInfo | None) -> float | ScalePolicy:
    """Returns T in the form that decoders take: a number, or the policy at this T."""
    return threshold if policy is None else policy.at(threshold)


def _shown(parameters: Mapping[str, Any]) -> str:
    values = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in parameters.items()}
    return ", ".join(f"{name} {value}" for name, value in values.items())
