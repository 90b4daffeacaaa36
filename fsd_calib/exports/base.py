"""The options of an engine for a profile: the interface of engines, and what stands against any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from fsd_decoding.profile.parts import DraftKind, PolicyInfo
    from fsd_decoding.profile.threshold_profile import ThresholdProfile
    from fsd_decoding.scores import Score

BASE: Final = "fsd-sd"
"""The rule of engines that add a score to their exact test."""

_ALIKE: Final = {True: ("fsd-sd", "fsd-coupled"), False: ("fsd-sd", "ensemble")}
"""Rules that write the same texts by one score, in greedy decoding and where tokens are sampled."""


@dataclass(frozen=True)
class Knob:
    """How an engine is told the T of a score, or of a rule that measures T on a scale of its own.

    Args:
        versions: of the engine, that have it and were read.
        options: returns the engine's options by name, for a score and T.
    """

    versions: str
    options: Callable[[Score, float], dict[str, Any]]


@dataclass(frozen=True)
class Flags:
    """The options of an engine for a profile.

    Args:
        text: what is pasted: a command for a shell, a file, or Python.
        versions: of the engine, that take it.
        notes: what else there is to know, a sentence or more each.
    """

    text: str
    versions: str
    notes: tuple[str, ...] = ()


class Engine:
    """Base class of engines.

    Attributes:
        name: as --to has it.
        title: as its makers write it.
        versions: those that decode exactly as it is told here.
        knobs: by the score, or by the rule, that T belongs to.
        drafts: the kinds of drafts that it is told of.
        lacks: settings of sampling that it has not, or not as in the calibration.
        one_t: where its one T holds, and the policy to calibrate with, in words.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    versions: ClassVar[str]
    knobs: ClassVar[Mapping[str, Knob]]
    drafts: ClassVar[tuple[DraftKind, ...]] = ("model",)
    lacks: ClassVar[tuple[str, ...]] = ()
    one_t: ClassVar[str] = "one T for all tokens; calibrate with a constant T"

    def has(self, profile: ThresholdProfile) -> bool:
        """Whether the engine has what the profile's T belongs to; exact decoding every engine has."""
        owner = owner_of(profile)
        return owner is None or owner in self.knobs

    @property
    def offer(self) -> str:
        """What it has, in words."""
        return f"{', '.join(self.knobs)} alone"

    def decoder(self, profile: ThresholdProfile) -> str:
        """The name of what decodes, as profiles name the engine of their certificate."""
        return self.name

    def rule_for(self, greedy: bool) -> str:
        """The rule by which it keeps and replaces tokens."""
        return BASE

    def moves(self, policy: PolicyInfo) -> bool:
        """Whether the engine moves T as a policy does."""
        return policy.name == "constant"

    def obstacles(self, profile: ThresholdProfile) -> Iterator[str]:
        """Yields what the engine cannot be told of a profile whose score it has, and the way out."""
        from fsd_decoding.profile.parts import IN_WORDS

        if profile.threshold is not None:
            yield from self._of_threshold(profile)
        if profile.beams is not None:
            yield (
                f"the profile is of {profile.beams.number} beams, and {self.title} is told of single texts alone; "
                "calibrate without --beams"
            )
        if profile.followed.tree is not None:
            yield (
                f"the profile drafts trees of {profile.followed.tree}, and {self.title} is told of chains alone; "
                "calibrate chains"
            )
        if profile.draft.kind not in self.drafts:
            yield (
                f"the profile's draft is the {IN_WORDS[profile.draft.kind]} {profile.draft.id!r}, and {self.title} is "
                f"told of these alone: {', '.join(IN_WORDS[kind] for kind in self.drafts)}; calibrate with one"
            )
        for name in self.lacks:
            value, usual = getattr(profile.sampling, name), 1.0 if name == "repetition_penalty" else None
            if value != usual:
                yield (
                    f"the profile samples with {name} {value:g}, which {self.title} has not, or not as here, in "
                    "speculative decoding; calibrate without it"
                )

    def flags(self, profile: ThresholdProfile) -> Flags:
        """Returns the engine's options for a profile that nothing stands against."""
        raise NotImplementedError

    def knob_of(self, profile: ThresholdProfile) -> tuple[dict[str, Any], str]:
        """Returns the options that set T, none where decoding is exact, and the versions that have them."""
        from fsd_decoding.scores import score_named

        owner = owner_of(profile)
        if owner is None or profile.threshold is None:
            return {}, self.versions
        knob = self.knobs[owner]
        return knob.options(score_named(profile.score), profile.threshold), knob.versions

    def _of_threshold(self, profile: ThresholdProfile) -> Iterator[str]:
        from fsd_decoding.rules import rule_named
        from fsd_decoding.scores import score_named

        rule, greedy = rule_named(profile.rule), profile.sampling.temperature == 0
        own, alike = self.rule_for(greedy), _ALIKE[greedy]
        if rule.name == "fsd-coupled" and not greedy:
            yield (
                f"the profile samples under rule {rule.name!r}, and {self.title} as {own!r} does: by a score that "
                f"depends on the token, their texts have other distributions; calibrate with --rule {own}"
            )
        elif rule.name not in (alike if own in alike else (own,)):
            yield (
                f"the profile's rule is {rule.name!r}, and {self.title} keeps and replaces tokens as {own!r} does; "
                f"calibrate with --rule {own}"
            )
        if rule.bounds_score and score_named(profile.score).on is None and profile.logits != "raw":
            yield f"the profile's score is of processed logits, and {self.title} reads raw ones; calibrate on raw ones"
        if profile.policy is not None and not self.moves(profile.policy):
            yield f"the profile's threshold policy is {profile.policy}, and {self.title} has {self.one_t}"
        if profile.within_support:
            yield (
                "the profile rejects tokens outside the target's support, which cannot be asked of "
                f"{self.title}; calibrate without that"
            )
        if profile.early_stop is not None:
            yield f"the profile ends drafts by a predictor, for which {self.title} has no place; calibrate without"


def owner_of(profile: ThresholdProfile) -> str | None:
    """Returns what the profile's T belongs to: a score, without its numbers, or a rule; None: decoding is exact."""
    from fsd_decoding.rules import rule_named

    if profile.threshold is None:
        return None
    return profile.score.partition("@")[0] if rule_named(profile.rule).bounds_score else profile.rule


def number(value: float) -> float:
    """Returns a number as precise as engines read it, which is fp32, and no longer than that."""
    return float(f"{value:.9g}")
