"""The measured curve of a profile, point by point."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from fsd_decoding.profile.parts import Amount, Counts, Natural, Part, Share, check_total
from fsd_decoding.profile.policy import PolicyInfo

Source = Literal["tuning", "certification"]
Arm = tuple[str, str, int, str | None, str | None]
"""Rule, divergence, draft length, identity of the threshold policy, and id of the draft if not the profile's."""
Configuration = tuple[Arm, float | None]  # an arm and its T


def arm_of(rule: str, divergence: str, draft_length: int, policy: PolicyInfo | None, draft: str | None = None) -> Arm:
    """Returns the arm of a configuration."""
    return rule, divergence, draft_length, policy.identity if policy else None, draft


class CurvePoint(Part):
    """One configuration, measured on one part. `threshold` None: the rule has none (`target`, `sd`). `policy`: scales
    T; None: T is constant. `draft`: the id of the draft model if it is not the profile's own.

    `forecast`, tokens/s of one stream: by the cost model, from the rounds that the configuration took on the tuning
    part, so points of a configuration on both parts have the same. Timed speeds are in the profile's `speed`.

    `lower_bound`: of retention, by itself at the certificate's level or, if `simultaneous`, together with all other
    such points. `counts`: of (problem, seed) pairs, from which the bound was computed. Both only for points decoded on
    the certification part.
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
            raise ValueError("a point measured on the tuning part must not have a lower_bound")
        if self.simultaneous and self.lower_bound is None:
            raise ValueError("simultaneous is true, but lower_bound is null")
        if self.counts is not None:
            check_total(self.counts, self.problems, self.seeds)
        return self
