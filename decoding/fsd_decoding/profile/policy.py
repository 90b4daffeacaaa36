"""What moves T, in a profile: the policy's name and numbers, of which it is built again.

Knows identities, as `adaptive.known` reads them. Knows no policy in particular.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from fsd_decoding.profile.parts import Natural, Part

if TYPE_CHECKING:
    from fsd_decoding.policies.threshold import ScalePolicy

_LONGEST = 60  # characters of parameters that are worth showing


class PolicyInfo(Part):
    """A policy that multiplies T by a scale of its own, without T: its shape."""

    name: str
    version: Natural
    parameters: dict[str, JsonValue]

    @classmethod
    def of(cls, identity: str) -> Self:
        parameters = json.loads(identity)
        return cls(name=parameters.pop("name"), version=parameters.pop("version"), parameters=parameters)

    @property
    def identity(self) -> str:
        """What `ScalePolicy.identity` says of it."""
        return json.dumps({"name": self.name, "version": self.version, **self.parameters}, sort_keys=True)

    def at(self, threshold: float) -> ScalePolicy:
        """The policy itself, with its T. UsageError: this version knows none of that name and version."""
        from fsd_decoding.policies.registry import policy_named

        return policy_named(self.identity).at(threshold)

    def __str__(self) -> str:
        """Short enough for a line; numbers beyond that are told apart by a digest."""
        shown = _shown(self.parameters)
        if len(shown) > _LONGEST:
            shown = hashlib.sha256(self.identity.encode()).hexdigest()[:8]
        return f"{self.name} ({shown})"


def brief(identity: str) -> str:
    """A policy by its identity, for a line."""
    return str(PolicyInfo.of(identity))


def moved(threshold: float, policy: PolicyInfo | None) -> float | ScalePolicy:
    """T as a decoder takes it."""
    return threshold if policy is None else policy.at(threshold)


def _shown(parameters: Mapping[str, Any]) -> str:
    values = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in parameters.items()}
    return ", ".join(f"{name} {value}" for name, value in values.items())
