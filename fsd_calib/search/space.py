"""The search space: discrete arms, and one continuous parameter in each.

The parameter is logit(u), where u is the share of drafted tokens that the score alone accepts. Thresholds of
different scores have no common scale, shares do; and nearly all of the interesting range has shares close to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NamedTuple

from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.profile.setting import Drafting, Setting
from fsd_decoding.tree_shape import TreeShape


def logit(share: float) -> float:
    return math.log(share / (1 - share))


@dataclass(frozen=True)
class Space:
    """All combinations of rule, score, draft length, policy, draft, shape of trees and width of beams.

    Each combination is an arm. Arms that differ in their draft length alone form a family: at the same threshold they
    accept the same tokens.

    Args:
        policies: Identities of policies that move T; None: T is constant. A policy sets the shape of T, and T its
            level.
        drafts: Names of the drafts; (None,) where there is only one.
        trees: Shapes of the trees that are drafted; None: chains.
        depths: The draft lengths of trees; empty: those of chains.
        widths: Of the layers of beams; None: single texts are decoded.

    Raises:
        UsageError: One of them is empty, but for the last.
    """

    rules: tuple[str, ...]
    scores: tuple[str, ...]
    draft_lengths: tuple[int, ...]
    policies: tuple[str | None, ...] = (None,)
    drafts: tuple[str | None, ...] = (None,)
    trees: tuple[TreeShape | None, ...] = (None,)
    depths: tuple[int, ...] = ()
    widths: tuple[int | None, ...] = (None,)

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if not values and name != "depths":
                raise UsageError(f"the search space has no {name.replace('_', ' ')}; give one or more")

    @property
    def values(self) -> dict[str, Any]:
        """The fields for JSON, and the code that is not of fsd-calib."""
        arms = (setting for family in self.families for setting in family)
        addons = dict.fromkeys(each for arm in arms for each in arm.addons)
        return asdict(self) | ({"addons": [each.facts for each in addons]} if addons else {})

    @property
    def choices(self) -> dict[str, tuple[Any, ...]]:
        """The values of an arm's fields, in the order of a trial's parameters."""
        return {
            "rule": self.rules, "score": self.scores,
            "draft_length": tuple(dict.fromkeys(length for tree in self.trees for length in self.lengths(tree))),
            "policy": self.policies, "draft": self.drafts,
            "tree": tuple(None if tree is None else tree.text for tree in self.trees), "width": self.widths,
        }  # fmt: skip

    def lengths(self, tree: TreeShape | None) -> tuple[int, ...]:
        """The draft lengths of trees of a shape, or of chains."""
        return self.draft_lengths if tree is None else self.depths or self.draft_lengths

    @property
    def draftings(self) -> list[Drafting]:
        """All drafts, as chains and trees of each shape, or as beams of each width."""
        return self._draftings(self.trees)

    @property
    def compared(self) -> list[Drafting]:
        """`draftings`, and the chains of every draft, which lossless decoding is timed with too."""
        return self._draftings((None, *self.trees))

    def _draftings(self, trees: tuple[TreeShape | None, ...]) -> list[Drafting]:
        return [Drafting(*each) for each in dict.fromkeys(product(self.drafts, trees, self.widths))]

    @property
    def families(self) -> list[list[Setting]]:
        """All arms, grouped into families."""
        return [
            [
                Setting(rule, score, length, policy=_policy(policy), draft=draft, tree=tree, width=width)
                for length in dict.fromkeys(self.lengths(tree))
            ]
            for draft, tree, width in self.draftings
            for rule in dict.fromkeys(self.rules)
            for score in dict.fromkeys(self.scores)
            for policy in dict.fromkeys(self.policies)
        ]


def same_family(one: Setting, other: Setting) -> bool:
    """Whether the arms differ in their draft length at most."""
    return one.family == other.family


def parameters_of(arm: Setting) -> dict[str, Any]:
    """Returns an arm's fields as the parameters of a trial, whose values are those of `Space.choices`."""
    return {
        **vars(arm),
        "policy": None if arm.policy is None else arm.policy.identity,
        "tree": None if arm.tree is None else arm.tree.text,
    }


def arm_of(parameters: Mapping[str, Any]) -> Setting:
    """Returns the arm of a trial's parameters; see `parameters_of`."""
    tree = parameters["tree"]
    changes = {"policy": _policy(parameters["policy"]), "tree": None if tree is None else TreeShape.parse(tree)}
    return Setting(**{**parameters, **changes})


def _policy(identity: str | None) -> PolicyInfo | None:
    return None if identity is None else PolicyInfo.of(identity)


class Point(NamedTuple):
    """A point of the space: an arm, and logit(u) in it."""

    arm: Setting
    logit_share: float
