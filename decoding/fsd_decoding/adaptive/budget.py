"""What budgets share: checks of what they work with, a call's sums, and how they are saved.

Knows numbers, profiles and saved states. Knows nothing of how a budget is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import Tensor

from fsd_decoding.acceptance.proposal import Criterion
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.threshold import RoundState
from fsd_decoding.profile.threshold_profile import ThresholdProfile

MOSTLY = 0.5  # a budget was out of reach where T was at its end in more of the rounds


def saved(owner: object, settings: Mapping[str, Any], learned: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` are what a state is worthless without: only a budget with the same may go on from it."""
    return {"policy": type(owner).__name__, **settings, **learned}


def restored(
    owner: object, settings: Mapping[str, Any], learned: Sequence[str], state: Mapping[str, Any]
) -> dict[str, Any]:
    """What `saved` was told that `owner` had learned. UsageError: the state is another's."""
    for name, mine in {"policy": type(owner).__name__, **settings}.items():
        if state.get(name) != mine:
            raise UsageError(f"the state has {name} {state.get(name)!r}, this policy {mine!r}; it is another's")
    if missing := [name for name in learned if name not in state]:
        raise UsageError(f"the state of {type(owner).__name__} lacks {', '.join(missing)}; it was not saved whole")
    return {name: state[name] for name in learned}


@dataclass
class Tally:
    """Of the rounds of a call, on the device; `spent` is what the budget is of."""

    rounds: int = 0
    limited: Tensor | float = 0.0  # of them, in which T was as large as may be
    tokens: Tensor | float = 0.0
    spent: Tensor | float = 0.0

    def add(self, limited: Tensor, tokens: Tensor, spent: Tensor | float) -> None:
        self.rounds += 1
        self.limited = limited + self.limited
        self.tokens = tokens + self.tokens
        self.spent = spent + self.spent

    @property
    def share_limited(self) -> float:
        """Waits for the device."""
        return float(self.limited) / max(self.rounds, 1)


def check_criterion(whose: str, profile: ThresholdProfile, criterion: Criterion) -> None:
    """UsageError: what T bounds here is not what it bounded where the profile was calibrated."""
    here = {"logits": criterion.on, "within_support": criterion.within_support}
    for name, now in here.items():
        if (then := getattr(profile, name)) != now:
            raise UsageError(
                f"the profile of {whose} has {name} {then!r}, this decoding has {now!r}; decode as it was calibrated"
            )


class SameModels:
    """Holds a profile against the models it is used with: once, as that reads their weights.

    UsageError: the profile's T is moved by a policy already.
    """

    def __init__(self, profile: ThresholdProfile) -> None:
        if profile.policy is not None:
            raise UsageError(
                f"the profile of {profile.task!r} moves T by {profile.policy.name!r} already; give one that was "
                "calibrated for a constant T"
            )
        self.profile = profile
        self.doubts: list[str] = []
        self._seen: list[ref[Any]] = []  # the models that passed

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, divergence: str) -> None:
        """UsageError: the profile is of other models, or of another rule or divergence. Keeps what is doubtful."""
        profile = self.profile
        for name, then, now in (("rule", profile.rule, rule), ("divergence", profile.divergence, divergence)):
            if then != now:
                raise UsageError(
                    f"the profile is of {name} {then!r}, this decoder runs {now!r}; give it {name}={then!r}"
                )
        if len(models) != 2:
            raise UsageError(f"the profile is of the draft model {profile.draft.id!r}, this decoder drafts without one")
        if [seen() for seen in self._seen] != list(models):
            self.doubts = profile.compare(models[0], models[1], tokenizer)
            self._seen = [ref(model) for model in models]

    def check_round(self, state: RoundState) -> None:
        """UsageError: T is held against other divergences than the profile's."""
        check_criterion(repr(self.profile.task), self.profile, state.proposal.criterion)
