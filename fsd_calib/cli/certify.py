"""`fsd-calibrate --certify`: what the profile supplies, and which options go with it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsd_common.errors import UsageError

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

_OF_THE_SEARCH = (
    "min_speed", "pareto", "rule", "divergence", "threshold_policy", "policy", "draft_length", "predictor", "tree",
    "drafter", "temperature", "top_k", "top_p", "min_p", "preset", "greedy", "storage",
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


def models_of(profile: ThresholdProfile, target: str | None) -> tuple[str, list[Any]]:
    """Returns the target that is given, or the profile's, and the profile's draft."""
    from fsd_decoding.profile.drafts import draft_of

    return target or profile.target.id, [draft_of(profile.draft)]
