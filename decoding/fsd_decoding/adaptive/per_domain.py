"""T per domain: each prompt is decoded with the T of its domain's profile."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fsd_common.argument_checks import number
from fsd_common.errors import UsageError
from fsd_decoding.adaptive.budget import ModelsCheck, check_chains, check_criterion
from fsd_decoding.batch import Request
from fsd_decoding.policies.threshold import NewRequests, RoundState, ThresholdPolicy
from fsd_decoding.profile.following import warning_of
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_MEMORY = "threshold"
_SHARED = ("rule", "score", "logits", "within_support", "draft_length")
"""Fields that all profiles must agree on, as T has no meaning without them."""


class PerDomain(ThresholdPolicy):
    """Sets each prompt's T by its tag: the threshold of a profile (lossless if it certifies none), or a number.

    Only T is taken from the profiles. Their other settings must be those of the decoder.

    Args:
        domains: maps tags to profiles, paths of profiles, or values of T.
        tags: one per prompt, in the order of the prompts.
        allow_edited: follow profiles that were changed after their calibration.

    Raises:
        UsageError: `domains` or `tags` are malformed, a tag is unknown, a profile has a policy, is for trees or is
            edited, or profiles disagree. In use: the decoder's models or settings are not those of the profiles, or a
            prompt has no tag.
    """

    def __init__(self, domains: Mapping[str, object], tags: Sequence[str], *, allow_edited: bool = False) -> None:
        if not isinstance(domains, Mapping) or not domains:
            raise UsageError(f"domains is {domains!r:.60}; it must map tags to profiles or numbers, at least one")
        if isinstance(tags, str) or not isinstance(tags, Sequence):
            raise UsageError(f"tags is {tags!r:.60}; it must be a list of tags, one per prompt")
        loaded = {tag: _load_domain(tag, value, allow_edited) for tag, value in domains.items()}
        self.profiles = {tag: value for tag, value in loaded.items() if isinstance(value, ThresholdProfile)}
        self.by_tag = {tag: _threshold(tag, value) for tag, value in loaded.items()}
        for prompt, tag in enumerate(tags):
            if tag not in self.by_tag:
                raise UsageError(f"the tag of prompt {prompt} is {tag!r:.60}; known: {', '.join(self.by_tag)}")
        self.tags, self.threshold = list(tags), max(self.by_tag.values())
        self._checks = {tag: ModelsCheck(profile) for tag, profile in self.profiles.items()}
        for tag, profile in self.profiles.items():
            first, other = next(iter(self.profiles.items()))
            for name in _SHARED:
                _check_equal(name, tag, getattr(profile, name), f"that of {first!r}", getattr(other, name))

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, score: str) -> None:
        for tag, profile in self.profiles.items():
            for name, now in (("rule", rule), ("score", score)):
                _check_equal(name, tag, getattr(profile, name), "this decoding", now)
            self._checks[tag].compare(models, tokenizer)

    def departures(self, settings: Sequence[Any]) -> list[str]:
        found = {}
        for tag, profile in self.profiles.items():
            if tag in self.tags:  # whose prompts' draft length is checked, others may have another
                own = [replace(each, draft_length=profile.followed.draft_length) for each in settings]
                found[tag] = self._checks[tag].departure(own)
        return [f"domain {tag!r}: {departure}" for tag, departure in found.items() if departure is not None]

    def doubts(self) -> list[str]:
        doubts = [(tag, doubt) for tag, check in self._checks.items()
                  for doubt in (*check.doubts, warning_of(check.profile))]  # fmt: skip
        return [f"domain {tag!r}: {doubt}" for tag, doubt in doubts if doubt is not None]

    def start(self, new: NewRequests) -> None:
        thresholds = torch.tensor([self._threshold_of(request) for request in new.requests], dtype=torch.float64)
        new.memory.column(_MEMORY)[new.rows] = thresholds.to(new.rows.device)

    def thresholds(self, state: RoundState) -> Tensor:
        for tag, profile in self.profiles.items():
            check_criterion(repr(tag), profile, state.proposal.criterion)
        return state.memory.column(_MEMORY)

    def _threshold_of(self, request: Request) -> float:
        if request.index >= len(self.tags):
            raise UsageError(
                f"prompt {request.index} has no tag: tags has {len(self.tags)} entries; pass one tag per prompt"
            )
        tag = self.tags[request.index]
        if tag in self.profiles:
            calibrated = self.profiles[tag].draft_length
            _check_equal("draft_length", tag, calibrated, f"prompt {request.index}", request.draft_length)
        return self.by_tag[tag]


def _load_domain(tag: str, value: object, allow_edited: bool) -> ThresholdProfile | float:
    if isinstance(value, ThresholdProfile):
        if not allow_edited:
            value.require_unedited()
        return value
    if isinstance(value, (str, os.PathLike)):
        return ThresholdProfile.load(value, allow_edited=allow_edited)
    return number(f"the T of domain {tag!r}", value, "it must be a profile, the path of a profile, or a number")


def _threshold(tag: str, domain: ThresholdProfile | float) -> float:
    """Returns a domain's T. Raises UsageError for a profile whose T is moved by a policy, or for trees."""
    if isinstance(domain, ThresholdProfile):
        check_chains(repr(tag), domain)
        if domain.policy is not None:
            raise UsageError(
                f"the threshold of the profile of {tag!r} is already moved by the policy {domain.policy.name!r}; use "
                "a profile that was calibrated with a constant threshold"
            )
        return -1.0 if domain.threshold is None else domain.threshold
    return domain


def _check_equal(name: str, tag: str, profile: object, whose: str, other: object) -> None:
    if profile != other:
        raise UsageError(
            f"the profile of {tag!r} has {name} {profile!r}, but {whose} has {other!r}; decode with profiles and "
            f"settings that have the same {name}"
        )
