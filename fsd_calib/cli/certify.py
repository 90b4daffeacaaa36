"""`fsd-calibrate --certify`: what the profile supplies, and which options go with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fsd_decoding.errors import UsageError

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

_OF_THE_SEARCH = (
    "min_speed", "pareto", "rule", "divergence", "threshold_policy", "policy", "draft_length", "predictor",
    "temperature", "top_k", "top_p", "preset", "greedy", "storage",
)  # fmt: skip


def profile_to_certify(path: Path, given: Collection[str]) -> ThresholdProfile:
    """Returns the profile whose setting is to be certified.

    Args:
        given: see `options_given`.

    Raises:
        UsageError: it cannot be read, or an option beside --certify says what the profile says, or is of the search.
    """
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    for name in _OF_THE_SEARCH:
        if name in given:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"--certify takes the profile's own setting and searches nothing; leave {option} out")
    return ThresholdProfile.load(path)


def models_of(profile: ThresholdProfile, target: str | None, drafts: Sequence[str] | None) -> tuple[str, list[str]]:
    """Returns the profile's models, or those that are given in their place."""
    return target or profile.target.id, list(drafts or [profile.draft.id])
