"""What is searched: arms, and in each of them one number. Knows names, and nothing of how good any of it is.

The number is logit(u), u being the share of drafted tokens that the divergence alone accepts: thresholds of
different divergences share no scale, shares do, and the action is where nearly all is accepted (DESIGN section 11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fsd_calib.measuring.configuration import Configuration
from fsd_decoding.errors import UsageError


def logit(share: float) -> float:
    return math.log(share / (1 - share))


@dataclass(frozen=True)
class Space:
    """Every rule with every divergence and draft length; each combination is an **arm**, and arms that differ in
    their draft length alone are **kin**: at one threshold they accept the same tokens.

    Raises:
        UsageError: one of the three is empty.
    """

    rules: tuple[str, ...]
    divergences: tuple[str, ...]
    draft_lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if not values:
                raise UsageError(f"the search space has no {name.replace('_', ' ')}; give one or more")

    @property
    def families(self) -> list[list[Configuration]]:
        """Arms, those that are kin together."""
        return [
            [Configuration(rule, divergence, length) for length in dict.fromkeys(self.draft_lengths)]
            for rule in dict.fromkeys(self.rules)
            for divergence in dict.fromkeys(self.divergences)
        ]


def kin(one: Configuration, other: Configuration) -> bool:
    return (one.rule, one.divergence) == (other.rule, other.divergence)


@dataclass(frozen=True)
class Point:
    """Where a trial is: an arm, and logit(u) in it."""

    arm: Configuration
    logit_share: float
