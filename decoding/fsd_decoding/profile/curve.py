"""The measured curve of a profile, point by point."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from fsd_decoding.profile.parts import Amount, Counts, Natural, Part, Positive, Ratio, Share, check_total
from fsd_decoding.profile.policy import PolicyInfo
from fsd_decoding.trees.shape import TreeShape

Source = Literal["tuning", "certification"]
Arm = tuple[str, str, int, str | None, str | None, TreeShape | None]
"""Rule, divergence, draft length, identity of the threshold policy, id of the draft if not the profile's, and shape of
the trees; None: chains."""
Configuration = tuple[Arm, float | None]  # an arm and its T


def arm_of(
    rule: str, divergence: str, draft_length: int, policy: PolicyInfo | None, draft: str | None = None,
    tree: TreeShape | None = None,
) -> Arm:  # fmt: skip
    """Returns the arm of a configuration."""
    return rule, divergence, draft_length, policy.identity if policy else None, draft, tree


class CurvePoint(Part):
    """One configuration, measured on one part."""

    rule: str
    """Its acceptance rule."""
    divergence: str
    """The divergence that its threshold is compared with."""
    draft_length: Natural
    """Number of tokens drafted in a round."""
    threshold: Amount | None
    """Its T. null: the rule has none (`target`, `sd`)."""
    policy: PolicyInfo | None = None
    """Scales T from round to round. null: T is constant."""
    draft: str | None = None
    """The id of its draft model, if it is not the profile's own."""
    tree: TreeShape | None = None
    """The shape of its trees, whose depth is `draft_length`. null: it drafts chains."""
    accuracy: Share
    """Share of right answers."""
    retention: Ratio
    """Right answers, divided by those of the target."""
    lower_bound: Ratio | None
    """Lower bound of retention, by itself at the certificate's level or, if `simultaneous`, together with all other
    such points. null: the point was not tested."""
    tokens_per_round: Positive
    """Tokens per round."""
    forecast: Amount | None
    """Tokens/s of one stream by the cost model, from the rounds that the configuration took on the tuning part, so that
    its points on both parts have the same. Timed speeds are in the profile's `speed`. null: not known."""
    problems: Natural
    """Number of problems it was measured on."""
    source: Source
    """The part that they are of."""
    counts: Counts | None = None
    """Counts of (problem, seed) pairs, from which the bound was computed. null: the point was not tested."""
    interval: tuple[Ratio, Ratio] | None = None
    """Approximate two-sided interval of retention at the certificate's confidence, of an exploration's point by itself.
    null: the point was not explored."""
    simultaneous: bool = False
    """Whether the bound holds together with those of all other such points."""
    seeds: Natural = 1
    """Number of noise seeds per problem."""

    @property
    def configuration(self) -> Configuration:
        return self.arm, self.threshold

    @property
    def arm(self) -> Arm:
        return arm_of(self.rule, self.divergence, self.draft_length, self.policy, self.draft, self.tree)

    @model_validator(mode="after")
    def _bounds_need_certification(self) -> Self:
        if self.lower_bound is not None and self.source != "certification":
            raise ValueError("a point measured on the tuning part must not have a lower_bound")
        if self.simultaneous and self.lower_bound is None:
            raise ValueError("simultaneous is true, but lower_bound is null")
        if self.counts is not None:
            check_total(self.counts, self.problems, self.seeds)
        return self
