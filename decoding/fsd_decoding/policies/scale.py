"""Shapes: scale policies that an identity string describes completely, except for T."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from fsd_decoding.policies.threshold import ScalePolicy

_DIGITS = 12  # of a share: the same shape at another T must not get another identity by rounding


class Shape(ScalePolicy):
    """A scale policy that can be calibrated, cached and stored in profiles. `registry.policy_named` rebuilds it.

    Attributes:
        name: of the kind of shape, as identities have it.
        version: raised when the same parameters come to mean other scales.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """Builds the shape from the parameters of its identity, where policies are built already. Its T is arbitrary:
        `at` sets it.

        Raises:
            UsageError, TypeError, KeyError: there is no such shape.
        """
        raise NotImplementedError

    def describe(self, **parameters: Any) -> str:
        """Returns the identity of these parameters: canonical JSON."""
        return json.dumps({"name": self.name, "version": self.version, **parameters}, sort_keys=True)


def share(part: float, whole: float) -> float:
    """Returns part / whole for two values of T, rounded as identities have it."""
    return float(f"{part / whole:.{_DIGITS}g}")
