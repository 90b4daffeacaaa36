"""What decides a text, beside prompt and noise. Knows names and numbers, and decodes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath

from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.profile.policy import PolicyInfo, brief, moved


@dataclass(frozen=True)
class Configuration:
    """`threshold` None: the rule has none. `policy`: the identity of what moves T; None: nothing does. `draft`: the
    name of the draft model; None: the only one there is, or the rule does not draft."""

    rule: str
    divergence: str
    draft_length: int
    threshold: float | None = None
    policy: str | None = None
    draft: str | None = None

    def at(self, threshold: float) -> Configuration:
        return replace(self, threshold=threshold)

    def under(self, rule: str) -> Configuration:
        """The same with a rule that has no threshold."""
        return replace(self, rule=rule, threshold=None, policy=None)

    @property
    def arm(self) -> Configuration:
        """The same without its threshold: what thresholds are searched for."""
        return replace(self, threshold=None)

    @property
    def family(self) -> Configuration:
        """The same in all arms that are its kin: those that draft otherwise, and no more."""
        return replace(self.arm, draft_length=1)

    @property
    def moved(self) -> float | ScalePolicy | None:
        """T as a decoder takes it. UsageError: the policy is unknown."""
        return None if self.threshold is None else moved(self.threshold, self.info)

    @property
    def info(self) -> PolicyInfo | None:
        """Of the policy, as profiles have it."""
        return None if self.policy is None else PolicyInfo.of(self.policy)

    def __str__(self) -> str:
        if self.rule == "target":
            return self.rule
        by = "" if self.policy is None else f" by {brief(self.policy)}"
        bound = "" if self.threshold is None else f" {self.divergence} <= {self.threshold:.4g}{by}"
        drafting = "" if self.draft is None else f" with {PurePath(self.draft).name}"
        return f"{self.rule}{bound} at L = {self.draft_length}{drafting}"
