"""A configuration: what determines a decoded text, besides prompt and noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import Any, NamedTuple

from fsd_common.formatting import in_trees
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.profile.parts import PolicyInfo, brief, moved
from fsd_decoding.tree_shape import TreeShape

DRAFT_ALONE = "draft"
"""In place of a rule: the draft writes the text by itself. Only some engines can, see `Engine.runs_draft_alone`."""


class Drafting(NamedTuple):
    """What drafts: the name of the draft, or None where there is only one, and the shape of its trees, or None."""

    draft: str | None = None
    tree: TreeShape | None = None

    def __str__(self) -> str:
        by = "" if self.draft is None else f" with {PurePath(self.draft).name}"
        return f"{'chains' if self.tree is None else f'trees of {self.tree}'}{by}"


@dataclass(frozen=True)
class Configuration:
    """One setting of the decoder.

    Attributes:
        threshold: None: the rule has none.
        policy: Identity of the policy that moves T; None: T is constant.
        draft: Name of the draft; None: there is only one, or the rule does not draft.
        tree: Shape of the trees that are drafted, `draft_length` deep; None: chains.
    """

    rule: str
    divergence: str
    draft_length: int
    threshold: float | None = None
    policy: str | None = None
    draft: str | None = None
    tree: TreeShape | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The fields for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Configuration:
        """The configuration of these `values`."""
        tree = values["tree"]
        return cls(**{**values, "tree": None if tree is None else TreeShape(**tree)})

    @classmethod
    def alone(cls, divergence: str) -> Configuration:
        """The target without a draft. `divergence`: the engine's, which changes no text."""
        return cls("target", divergence, 1)

    @classmethod
    def draft_alone(cls, divergence: str, draft: str | None) -> Configuration:
        """The draft without a target. `divergence`: the engine's, which changes no text."""
        return cls(DRAFT_ALONE, divergence, 1, draft=draft)

    def at(self, threshold: float) -> Configuration:
        """Returns the configuration with this threshold."""
        return replace(self, threshold=threshold)

    def under(self, rule: str) -> Configuration:
        """Returns the configuration with another rule, which has no threshold."""
        return replace(self, rule=rule, threshold=None, policy=None)

    @property
    def arm(self) -> Configuration:
        """The configuration without its threshold: what thresholds are searched for."""
        return replace(self, threshold=None)

    @property
    def drafting(self) -> Drafting:
        """What drafts for it."""
        return Drafting(self.draft, self.tree)

    @property
    def family(self) -> Configuration:
        """A configuration that is equal for all arms of one family, which differ in draft length only."""
        return replace(self.arm, draft_length=1)

    @property
    def moved(self) -> float | ScalePolicy | None:
        """T in the form that a decoder takes.

        Raises:
            UsageError: The policy is unknown.
        """
        return None if self.threshold is None else moved(self.threshold, self.info)

    @property
    def info(self) -> PolicyInfo | None:
        """The policy in the form that profiles hold."""
        return None if self.policy is None else PolicyInfo.of(self.policy)

    def __str__(self) -> str:
        if self.rule == "target":
            return self.rule
        if self.rule == DRAFT_ALONE:
            return "draft alone" if self.draft is None else f"{PurePath(self.draft).name} alone"
        by = "" if self.policy is None else f" by {brief(self.policy)}"
        bound = "" if self.threshold is None else f" {self.divergence} <= {self.threshold:.4g}{by}"
        drafting = "" if self.draft is None else f" with {PurePath(self.draft).name}"
        return f"{self.rule}{bound} at L = {self.draft_length}{in_trees(self.tree)}{drafting}"
