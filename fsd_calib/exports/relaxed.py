"""Engines with relaxed acceptance: while the target thinks, what is drafted is kept if it is one of the k likeliest
tokens, with a probability at most T below the largest one, and else greedily replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fsd_calib.exports.base import Engine, number

if TYPE_CHECKING:
    from fsd_decoding.profile.parts import PolicyInfo
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
    one_t = "one T, while the target thinks; calibrate with --threshold-policy phase-inside"

    def moves(self, policy: PolicyInfo) -> bool:
        return super().moves(policy) or (policy.name == "phase" and policy.parameters["outside"] == 0)

    def obstacles(self, profile: ThresholdProfile) -> Iterator[str]:
        yield from super().obstacles(profile)
        if profile.sampling.temperature > 0:
            yield (
                f"the profile samples (temperature {profile.sampling.temperature:g}), and {self.title} "
                f"{'relaxes greedy decoding' if profile.threshold is not None else 'is told of greedy decoding'} "
                "alone; calibrate with --temperature 0"
            )
        if profile.threshold is not None and "@" not in profile.score:
            yield (
                f"the profile's score is {profile.score!r}, of tokens of any rank, and {self.title} asks for a "
                f"number of likeliest tokens; calibrate with one, such as --score {profile.score}@10"
            )

    def notes(self, profile: ThresholdProfile) -> list[str]:
        """What is otherwise than in the calibration of a profile with a threshold."""
        phase = phase_of(profile)
        elsewhere = (
            "Elsewhere it decodes exactly, where the profile's T held, too."
            if phase is None
            else f"The profile's T held between {phase[0]!r} and {phase[1]!r}, which these have to be."
        )
        said = [f"{self.title} relaxes between the tokens that begin and end thinking alone. {elsewhere}"]
        if profile.draft.kind == "model":
            said.append(
                f"It relaxes what the target's own MTP layers draft; the profile drafted with {profile.draft.id!r}. "
                "The score reads the target alone, so T means the same, but other tokens are drafted and kept."
            )
        return said


def phase_of(profile: ThresholdProfile) -> tuple[Any, Any] | None:
    """The markers between which the profile's T holds; None: it holds everywhere."""
    if profile.policy is None or profile.policy.name != "phase":
        return None
    return profile.policy.parameters["begin"], profile.policy.parameters["end"]
