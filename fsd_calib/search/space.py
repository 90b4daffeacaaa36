"""What is searched: arms, and in each of them one number. Knows names, and nothing of how good any of it is.

The number is logit(u), u being the share of drafted tokens that the divergence alone accepts: thresholds of
different divergences share no scale, shares do, and the action is where nearly all is accepted (DESIGN section 11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsd_calib.measuring.configuration import Configuration
from fsd_decoding.errors import UsageError


def logit(share: float) -> float:
    return math.log(share / (1 - share))


@dataclass(frozen=True)
class Space:
    """Every rule with every divergence, draft length, policy and draft; each combination is an **arm**, and arms that
    differ in their draft length alone are **kin**: at one threshold they accept the same tokens.

    Args:
        policies: identities of what moves T; None: nothing does. Each gives T a shape, and T is how loose it is.
        drafts: names of the draft models; (None,) where there is one.

    Raises:
        UsageError: one of the five is empty.
    """

    rules: tuple[str, ...]
    divergences: tuple[str, ...]
    draft_lengths: tuple[int, ...]
    policies: tuple[str | None, ...] = (None,)
    drafts: tuple[str | None, ...] = (None,)

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if not values:
                raise UsageError(f"the search space has no {name.replace('_', ' ')}; give one or more")

    @property
    def choices(self) -> dict[str, tuple[Any, ...]]:
        """What an arm's fields may be, in the order of a trial's parameters."""
        return {
            "rule": self.rules, "divergence": self.divergences, "draft_length": self.draft_lengths,
            "policy": self.policies, "draft": self.drafts,
        }  # fmt: skip

    @property
    def families(self) -> list[list[Configuration]]:
        """Arms, those that are kin together."""
        return [
            [
                Configuration(rule, divergence, length, policy=policy, draft=draft)
                for length in dict.fromkeys(self.draft_lengths)
            ]
            for draft in dict.fromkeys(self.drafts)
            for rule in dict.fromkeys(self.rules)
            for divergence in dict.fromkeys(self.divergences)
            for policy in dict.fromkeys(self.policies)
        ]


def kin(one: Configuration, other: Configuration) -> bool:
    return one.family == other.family


class Point(NamedTuple):
    """Where a trial is: an arm, and logit(u) in it."""

    arm: Configuration
    logit_share: float
