"""A setting of the decoder: all that determines a text and that a calibration chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter

from fsd_common.addons import Addon
from fsd_common.formatting import in_trees
from fsd_decoding.judging.known import TakesJudge
from fsd_decoding.profile.parts import Amount, Natural, PolicyInfo, moved
from fsd_decoding.tree_shape import TreeShape

if TYPE_CHECKING:
    from fsd_decoding.policies.threshold import ScalePolicy

DRAFT_ALONE = "draft"
"""In place of a rule: the draft writes the text by itself. Only some engines of a calibration can do that."""
KNOB = "knob"
"""In place of a rule: a server's own, by a knob of the score's name."""


class Drafting(NamedTuple):
    """What drafts: the name of the draft, or None where there is only one; the shape of its trees, or None; and the
    width of its layers of beams, or None."""

    draft: str | None = None
    tree: TreeShape | None = None
    width: int | None = None

    def __str__(self) -> str:
        by = "" if self.draft is None else f" with {PurePath(self.draft).name}"
        if self.width is not None:
            return f"beams at width {self.width}{by}"
        return f"{'chains' if self.tree is None else f'trees of {self.tree}'}{by}"


CHAINS = Drafting()


@dataclass(frozen=True)
class Setting(TakesJudge):
    """Rule, score, draft length, threshold, and where there are any policy, draft, shape of trees and width of beams.

    Models, sampling, prompt and noise determine a text besides.
    """

    # A setting is a part of profiles: this and the bounds are for their files and their JSON schema.
    __pydantic_config__ = ConfigDict(
        extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True,
        json_schema_extra={"description": "A setting of the decoder."},
    )  # fmt: skip

    rule: str
    """Its acceptance rule."""
    score: str
    """The score that its threshold is compared with."""
    draft_length: Natural
    """Number of tokens drafted in a round, one after the other: with trees, their depth; with
    beams, layers."""
    threshold: Amount | None = None
    """Its T. null: the rule has none (`target`, `sd`)."""
    policy: PolicyInfo | None = None
    """Scales T from round to round. null: T is constant."""
    draft: str | None = None
    """The id of its draft, if several were searched and it is not the profile's own. null: the profile's."""
    tree: TreeShape | None = None
    """The shape of its trees. null: it drafts chains."""
    width: Natural | None = None
    """Pairs of a beam and a token that its draft proposes for a layer. null: there are no beams."""

    @classmethod
    def alone(cls, score: str) -> Setting:
        """The target without a draft. `score`: the engine's, which changes no text."""
        return cls("target", score, 1)

    @classmethod
    def draft_alone(cls, score: str, draft: str | None) -> Setting:
        """The draft without a target. `score`: the engine's, which changes no text."""
        return cls(DRAFT_ALONE, score, 1, draft=draft)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Setting:
        """The setting of these `values`."""
        return _adapter().validate_python(values)

    @property
    def values(self) -> dict[str, Any]:
        """The fields for JSON."""
        values: dict[str, Any] = _adapter().dump_python(self, mode="json")
        return values

    def at(self, threshold: float) -> Setting:
        """Returns the setting with this threshold."""
        return replace(self, threshold=threshold)

    def under(self, rule: str) -> Setting:
        """Returns the setting with another rule, which has no threshold."""
        return replace(self, rule=rule, threshold=None, policy=None)

    @property
    def arm(self) -> Setting:
        """The setting without its threshold: what thresholds are searched for."""
        return replace(self, threshold=None)

    @property
    def family(self) -> Setting:
        """A setting that is equal for all arms of one family, which differ in draft length only."""
        return replace(self.arm, draft_length=1)

    @property
    def drafting(self) -> Drafting:
        """What drafts for it."""
        return Drafting(self.draft, self.tree, self.width)

    @property
    def shape(self) -> str:
        """The shape of its drafts, as what follows a draft length; of chains nothing."""
        return in_trees(self.tree) if self.width is None else f", width {self.width}"

    @property
    def addons(self) -> tuple[Addon, ...]:
        """Its rule and score, where they are not of fsd-calib. UsageError: one is missing."""
        from fsd_decoding import rules, scores

        found = rules.addon_of(self.rule), scores.addon_of(self.score)
        return tuple(each for each in found if each is not None)

    @property
    def moved(self) -> float | ScalePolicy | None:
        """T in the form that a decoder takes. UsageError: the policy is unknown."""
        return None if self.threshold is None else moved(self.threshold, self.policy)

    def __str__(self) -> str:
        if self.rule == "target":
            return self.rule
        if self.rule == DRAFT_ALONE:
            return "draft alone" if self.draft is None else f"{PurePath(self.draft).name} alone"
        if self.rule == KNOB:
            return f"{self.score} = {self.threshold:.4g}"
        by = "" if self.policy is None else f" by {self.policy}"
        bound = "" if self.threshold is None else f" {self.score} <= {self.threshold:.4g}{by}"
        drafting = "" if self.draft is None else f" with {PurePath(self.draft).name}"
        return f"{self.rule}{bound} at L = {self.draft_length}{self.shape}{drafting}"


@cache
def _adapter() -> TypeAdapter[Setting]:
    return TypeAdapter(Setting)
