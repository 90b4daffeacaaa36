"""Shapes: scale policies that their identity says all of, but for the T.

Knows how an identity is written. Which shapes there are, and how one is rebuilt, is in `known.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from fsd_decoding.policies.threshold import ScalePolicy

_DIGITS = 12  # of a share: policies of one shape and other T must not differ by a rounding


class Shape(ScalePolicy):
    """A scale policy that can be calibrated, cached and stored: `known.policy_named` rebuilds it.

    version: raised when the same parameters come to mean other scales.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """From what `identified` was given, policies among it rebuilt. Its T does not matter: `at` gives it one.

        UsageError, TypeError or KeyError: there is no such shape.
        """
        raise NotImplementedError

    def identified(self, **parameters: Any) -> str:
        """The identity of these parameters: canonical JSON."""
        return json.dumps({"name": self.name, "version": self.version, **parameters}, sort_keys=True)


def share(part: float, whole: float) -> float:
    """Of T, as identities write it."""
    return float(f"{part / whole:.{_DIGITS}g}")
