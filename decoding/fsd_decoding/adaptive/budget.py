"""What policies with profiles have in common: the check of a profile, and of budgets the sums and saved states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.decoding_setting import DecodingSetting
from fsd_decoding.policies.threshold import RoundState
from fsd_decoding.profile.following import Coverage, coverage_of, doubts_of
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.proposal import Criterion

MOSTLY = 0.5  # a budget counts as out of reach if T was at its limit in a larger share of the rounds


def state_of(owner: object, settings: Mapping[str, Any], learned: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a budget's `state_dict`: what it learned, and the settings that a budget must share to load it."""
    return {"policy": type(owner).__name__, **settings, **learned}


def learned_from(
    state: Mapping[str, Any], owner: object, settings: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """Returns the learned values `names` from what `state_of` returned.

    Raises:
        UsageError: the state is of another policy or of other settings, or incomplete.
    """
    for name, mine in {"policy": type(owner).__name__, **settings}.items():
        if state.get(name) != mine:
            raise UsageError(
                f"the state has {name} {state.get(name)!r}, but this policy has {mine!r}; load it into the policy that "
                "saved it"
            )
    if missing := [name for name in names if name not in state]:
        raise UsageError(
            f"the state of {type(owner).__name__} lacks {', '.join(missing)}; save it again with state_dict()"
        )
    return {name: state[name] for name in names}


@dataclass
class Tally:
    """Sums over the rounds of a call, on the device."""

    rounds: int = 0
    limited: Tensor | float = 0.0  # rounds in which T was at its upper limit
    tokens: Tensor | float = 0.0
    spent: Tensor | float = 0.0  # in the unit of the budget

    def add(self, limited: Tensor, tokens: Tensor, spent: Tensor | float) -> None:
        self.rounds += 1
        self.limited = limited + self.limited
        self.tokens = tokens + self.tokens
        self.spent = spent + self.spent

    @property
    def share_limited(self) -> float:
        """Share of the rounds in which T was at its upper limit. Waits for the device."""
        return float(self.limited) / max(self.rounds, 1)


def check_criterion(name: str, profile: ThresholdProfile, criterion: Criterion) -> None:
    """Raises UsageError if D is computed otherwise than when the profile was calibrated, so that T means something
    else. `name` is how to call the profile in the message."""
    here = {"logits": criterion.on, "within_support": criterion.within_support}
    for setting, now in here.items():
        if (then := getattr(profile, setting)) != now:
            raise UsageError(
                f"the profile of {name} has {setting} {then!r}, but this decoding has {now!r}; decode with the "
                f"profile's {setting}"
            )


def check_chains(name: str, profile: ThresholdProfile) -> None:
    """Raises UsageError if the profile's T is for trees or beams, which policies with profiles do not go with. `name`
    is how to call the profile in the message."""
    if profile.beams is not None:
        raise UsageError(
            f"the profile of {name} is of {profile.beams.number} beams, and this policy sets T for single texts alone; "
            "use a profile that was calibrated without beams"
        )
    if profile.tree is not None:
        raise UsageError(
            f"the profile of {name} is for trees of {profile.tree}, and this policy sets T for chains alone; use a "
            "profile that was calibrated for chains, or decode with this one's own T instead of the policy"
        )


class ModelsCheck:
    """Compares a policy's profile with the models it is used with, once for each pair, as that reads their weights.

    Attributes:
        doubts: warnings about the profile with these models.
    """

    def __init__(self, profile: ThresholdProfile) -> None:
        self.profile = profile
        self.doubts: list[str] = []
        self._compared: list[ref[Any]] = []  # models that passed
        self._coverage: Coverage | None = None

    def compare(self, models: Sequence[Any], tokenizer: Any) -> None:
        """Raises UsageError if the profile is of other models."""
        if [model() for model in self._compared] == list(models):
            return
        self.doubts = doubts_of(self.profile, models, tokenizer)
        self._coverage = coverage_of(self.profile, models, tokenizer)
        self._compared = [ref(model) for model in models]

    def departure(self, settings: Sequence[DecodingSetting]) -> str | None:
        """Returns a warning that names what differs from the profile besides T, which the policy sets."""
        if self._coverage is None:
            return None
        usual = self._coverage.setting.threshold
        return self._coverage.departure(replace(each, threshold=usual, threshold_policy=None) for each in settings)


class ProfileCheck(ModelsCheck):
    """Checks a budget's profile against the decoder that it is used with.

    Raises:
        UsageError: the profile is edited, without `allow_edited`, a policy moves its T already, or it is for trees.
    """

    def __init__(self, profile: ThresholdProfile, allow_edited: bool) -> None:
        super().__init__(profile)
        check_chains(repr(profile.task), profile)
        if not allow_edited:
            profile.require_unedited()
        if profile.policy is not None:
            raise UsageError(
                f"the threshold of the profile of {profile.task!r} is already moved by the policy "
                f"{profile.policy.name!r}; use a profile that was calibrated with a constant threshold"
            )

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, score: str) -> None:
        """Raises UsageError if the profile is of other models, or of another rule or score. Collects `doubts`."""
        profile = self.profile
        for name, then, now in (("rule", profile.rule, rule), ("score", profile.score, score)):
            if then != now:
                raise UsageError(
                    f"the profile was calibrated with {name} {then!r}, but this decoder runs {now!r}; pass "
                    f"{name}={then!r} to it"
                )
        self.compare(models, tokenizer)

    def departures(self, settings: Sequence[DecodingSetting]) -> list[str]:
        """Returns `departure` as a list."""
        return [*filter(None, [self.departure(settings)])]

    def check_round(self, state: RoundState) -> None:
        """Raises UsageError if T is compared with other scores than the profile's."""
        check_criterion(repr(self.profile.task), self.profile, state.proposal.criterion)
