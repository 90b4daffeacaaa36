"""T by the domain that a prompt is of, each from a profile of its own. Knows tags, profiles and what these may differ
in; nothing of rounds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from fsd_decoding.adaptive.budget import check_criterion
from fsd_decoding.batch import Request
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.threshold import Begun, RoundState, ThresholdPolicy
from fsd_decoding.profile.settings import doubt_of
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.validation import number

_MEMORY = "threshold"
_SHARED = ("rule", "divergence", "logits", "within_support", "draft_length")
"""What T means nothing without, as profiles call it."""


class PerDomain(ThresholdPolicy):
    """Every prompt's T is that of its tag: a profile's (lossless where it certifies none), or a number.

    domains: tag -> profile, the path of one, or T. tags: one a prompt, in their order. Nothing but T is taken from
    the profiles: what else they say must be how the decoder runs.
    """

    def __init__(self, domains: Mapping[str, object], tags: Sequence[str]) -> None:
        if not isinstance(domains, Mapping) or not domains:
            raise UsageError(f"domains is {domains!r:.60}; it must map tags to profiles or numbers, at least one")
        if isinstance(tags, str) or not isinstance(tags, Sequence):
            raise UsageError(f"tags is {tags!r:.60}; it must be a list of tags, one a prompt")
        found = {tag: _profile_or_threshold(tag, given) for tag, given in domains.items()}
        self.profiles = {tag: one for tag, one in found.items() if isinstance(one, ThresholdProfile)}
        self.by_tag = {tag: _threshold(tag, one) for tag, one in found.items()}
        self.tags = [_known(tag, i, self.by_tag) for i, tag in enumerate(tags)]
        self.threshold = max(self.by_tag.values())
        self._held_against: list[Any] = []
        self._doubts: list[str] = []
        self._compare()

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, divergence: str) -> None:
        for tag, profile in self.profiles.items():
            for name, now in (("rule", rule), ("divergence", divergence)):
                _agree(name, tag, getattr(profile, name), "this decoding", now)
        models_now = [ref(model) for model in models]
        if models_now != self._held_against:  # reading models takes a while
            self._doubts = [doubt for tag in self.profiles for doubt in self._held(tag, models, tokenizer)]
            self._held_against = models_now

    def doubts(self) -> list[str]:
        return self._doubts

    def start(self, begun: Begun) -> None:
        thresholds = torch.tensor([self._of(request) for request in begun.requests], dtype=torch.float64)
        begun.memory.column(_MEMORY)[begun.rows] = thresholds.to(begun.rows.device)

    def thresholds(self, state: RoundState) -> Tensor:
        for tag, profile in self.profiles.items():
            check_criterion(repr(tag), profile, state.proposal.criterion)
        return state.memory.column(_MEMORY)

    def _compare(self) -> None:
        """UsageError: profiles differ in what T means."""
        for tag, profile in self.profiles.items():
            first, other = next(iter(self.profiles.items()))
            for name in _SHARED:
                _agree(name, tag, getattr(profile, name), f"that of {first!r}", getattr(other, name))

    def _held(self, tag: str, models: Sequence[Any], tokenizer: Any) -> list[str]:
        """What is doubtful of a profile with these models. UsageError: it is of others."""
        profile = self.profiles[tag]
        if len(models) < 2:
            raise UsageError(
                f"the profile of {tag!r} is of the draft model {profile.draft.id!r}, this draft is no model; load that "
                "one, or give a number"
            )
        doubts = [*profile.compare(models[0], models[1], tokenizer), doubt_of(profile)]
        return [f"domain {tag!r}: {doubt}" for doubt in doubts if doubt is not None]

    def _of(self, request: Request) -> float:
        if request.index >= len(self.tags):
            raise UsageError(f"prompt {request.index} has no tag; tags has {len(self.tags)} entries, give one a prompt")
        tag = self.tags[request.index]
        if tag in self.profiles:
            wanted = self.profiles[tag].draft_length
            _agree("draft_length", tag, wanted, f"prompt {request.index}", request.draft_length)
        return self.by_tag[tag]


def _profile_or_threshold(tag: str, given: object) -> ThresholdProfile | float:
    if isinstance(given, ThresholdProfile):
        return given
    if isinstance(given, (str, os.PathLike)):
        return ThresholdProfile.load(given)
    return number(f"the T of domain {tag!r}", given, "it must be a profile, the path of one, or a number")


def _threshold(tag: str, given: ThresholdProfile | float) -> float:
    """UsageError: a profile whose T is moved already."""
    if isinstance(given, ThresholdProfile):
        if given.policy is not None:
            raise UsageError(
                f"the profile of {tag!r} moves T by {given.policy.name!r}; PerDomain takes constant ones: give one "
                "that was calibrated for a constant T"
            )
        return -1.0 if given.threshold is None else given.threshold
    return given


def _known(tag: str, prompt: int, known: Mapping[str, float]) -> str:
    if tag not in known:
        raise UsageError(f"the tag of prompt {prompt} is {tag!r:.60}; known: {', '.join(known)}")
    return tag


def _agree(name: str, tag: str, profile: object, whose: str, other: object) -> None:
    if profile != other:
        raise UsageError(
            f"the profile of {tag!r} has {name} {profile!r}, {whose} has {other!r}; one decoding can follow only "
            "profiles that agree in it"
        )
