"""The measured curve of a profile, point by point.

Knows what a point may say of itself. Knows nothing of how points are chosen.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from fsd_decoding.profile.parts import Amount, Counts, Natural, Part, Share, check_total
from fsd_decoding.profile.policy import PolicyInfo

Source = Literal["tuning", "certification"]
Arm = tuple[str, str, int, str | None, str | None]
"""Rule, divergence, draft length, the identity of what moves T, and another draft than the profile's."""
Configuration = tuple[Arm, float | None]  # an arm and its T


def arm_of(rule: str, divergence: str, draft_length: int, policy: PolicyInfo | None, draft: str | None = None) -> Arm:
    return rule, divergence, draft_length, policy.identity if policy else None, draft


class CurvePoint(Part):
    """One configuration, measured on one part. `threshold` None: the rule has none (`target`, `sd`). `policy`: what
    moved T; None: nothing did. `draft`: the id of the draft model where it is not the profile's own.

    `forecast`, tokens/s of one stream: what the cost model makes of the rounds that the configuration took on the
    tuning part, so that its points on both parts say the same. What a clock said is the profile's `speed`.

    `lower_bound` bounds retention from below: by itself at the certificate's level, or, where `simultaneous`, at
    once with all other such points. `counts`, of (problem, seed) pairs, are what it was computed from. Both only
    where the point was decoded on the certification part.
    """

    rule: str
    divergence: str
    draft_length: Natural
    threshold: Amount | None
    policy: PolicyInfo | None = None
    draft: str | None = None
    accuracy: Share
    retention: Amount
    lower_bound: Amount | None
    tokens_per_round: Amount
    forecast: Amount | None
    problems: Natural
    source: Source
    counts: Counts | None = None
    simultaneous: bool = False
    seeds: Natural = 1

    @property
    def configuration(self) -> Configuration:
        return self.arm, self.threshold

    @property
    def arm(self) -> Arm:
        return arm_of(self.rule, self.divergence, self.draft_length, self.policy, self.draft)

    @model_validator(mode="after")
    def _bounds_need_certification(self) -> Self:
        if self.lower_bound is not None and self.source != "certification":
            raise ValueError("a point measured on the tuning part has no lower_bound")
        if self.simultaneous and self.lower_bound is None:
            raise ValueError("simultaneous, but without a lower_bound")
        if self.counts is not None:
            check_total(self.counts, self.problems, self.seeds)
        return self
