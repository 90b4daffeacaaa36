"""What a profile drafts: under lossless rules it may be another tree, or chains, than under its own rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fsd_decoding.acceptance.rules import rule_named
from fsd_decoding.config import DecodingConfig
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.trees.shape import TreeShape


class Drafts(NamedTuple):
    """The shape of drafts; without a tree they are chains."""

    draft_length: int | None
    tree: TreeShape | None


@dataclass(frozen=True)
class DraftsByRule:
    """What decoders of a profile draft under rules with and without a threshold."""

    fuzzy: Drafts
    lossless: Drafts

    @classmethod
    def of(cls, profile: ThresholdProfile) -> DraftsByRule:
        """Where `sd` was timed with another shape of the same draft, lossless rules take that, as deep as it was."""
        own = Drafts(profile.effective_draft_length, profile.effective_tree)
        if profile.sd_draft_length is None or profile.sd_draft is not None or profile.sd_tree == own.tree:
            return cls(own, own)
        return cls(own, Drafts(profile.sd_draft_length, profile.sd_tree))

    def followed(self, kept: Drafts, before: str, rule: str) -> Drafts:
        """Returns what a decoder drafts under another rule: the profile's own goes with the rule, another tree stays.

        Args:
            kept: what it drafts under the rule `before`.
        """
        then, now = self._under(before), self._under(rule)
        if kept.tree != then.tree:
            return kept
        return now if kept == then else kept._replace(tree=now.tree)

    def changed(self, config: DecodingConfig, given: Mapping[str, Any]) -> DecodingConfig:
        """Returns a configuration with the drafts of the rule that is given in its place, if no tree is given too."""
        rule = given.get("rule")
        if not isinstance(rule, str) or given.get("tree") is not None:
            return config
        kept: Any = Drafts(config.draft_length, config.tree)  # type: ignore[arg-type]  # a decoder has one of each
        return replace(config, **self.followed(kept, str(config.rule), rule)._asdict())

    def _under(self, rule: str) -> Drafts:
        return self.fuzzy if rule_named(rule).fuzzy else self.lossless
