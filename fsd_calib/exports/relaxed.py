"""Engines with relaxed acceptance: while the target thinks, what is drafted is kept if it is one of the k likeliest
tokens, with a probability at most T below the largest one, and else greedily replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fsd_calib.exports.base import Engine, number

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile
    from fsd_decoding.scores import Score


def relaxed(score: Score, threshold: float) -> dict[str, Any]:
    return {
        "use_relaxed_acceptance_for_thinking": True,
        "relaxed_topk": int(score.values[0]),
        "relaxed_delta": number(min(threshold, 1.0)),  # probabilities differ by no more
    }


class Relaxed(Engine):
    """Base class of these engines, in which draft models do not draft where acceptance is relaxed."""

    lacks = ("repetition_penalty",)

    def obstacles(self, profile: ThresholdProfile) -> Iterator[str]:
        yield from super().obstacles(profile)
        if profile.sampling.temperature > 0:
            yield (
                f"the profile samples (temperature {profile.sampling.temperature:g}), and {self.title} "
                f"{'relaxes greedy decoding' if profile.threshold is not None else 'is told of greedy decoding'} "
                "alone; calibrate with --temperature 0"
            )
        if profile.threshold is not None and "@" not in profile.divergence:
            yield (
                f"the profile's score is {profile.divergence!r}, of tokens of any rank, and {self.title} asks for a "
                f"number of likeliest tokens; calibrate with one, such as --score {profile.divergence}@10"
            )

    def notes(self, profile: ThresholdProfile) -> list[str]:
        """What is otherwise than in the calibration of a profile with a threshold."""
        said = [
            f"{self.title} relaxes between the tokens that begin and end thinking alone. Elsewhere it decodes exactly, "
            "where the profile's T held, too."
        ]
        if profile.draft.kind == "model":
            said.append(
                f"It relaxes what the target's own MTP layers draft; the profile drafted with {profile.draft.id!r}. "
                "The score reads the target alone, so T means the same, but other tokens are drafted and kept."
            )
        return said
