"""The search space: discrete arms, and one continuous parameter in each.

The parameter is logit(u), where u is the share of drafted tokens that the divergence alone accepts. Thresholds of
different divergences have no common scale, shares do; and nearly all of the interesting range has shares close to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsd_calib.engines.configuration import Configuration
from fsd_decoding.errors import UsageError


def logit(share: float) -> float:
    return math.log(share / (1 - share))


@dataclass(frozen=True)
class Space:
    """All combinations of rule, divergence, draft length, policy and draft.

    Each combination is an arm. Arms that differ in their draft length alone form a family: at the same threshold they
    accept the same tokens.

    Args:
        policies: Identities of policies that move T; None: T is constant. A policy sets the shape of T, and T its
            level.
        drafts: Names of the draft models; (None,) where there is only one.

    Raises:
        UsageError: One of the five is empty.
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
        """The values of an arm's fields, in the order of a trial's parameters."""
        return {
            "rule": self.rules, "divergence": self.divergences, "draft_length": self.draft_lengths,
            "policy": self.policies, "draft": self.drafts,
        }  # fmt: skip

    @property
    def families(self) -> list[list[Configuration]]:
        """All arms, grouped into families."""
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


def same_family(one: Configuration, other: Configuration) -> bool:
    """Whether the arms differ in their draft length at most."""
    return one.family == other.family


class Point(NamedTuple):
    """A point of the space: an arm, and logit(u) in it."""

    arm: Configuration
    logit_share: float
