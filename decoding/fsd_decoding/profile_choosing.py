"""Choosing another point of a profile's curve, later: what may be said of it, and what may not.

Knows points, their bounds, and what the certificate was made for. Knows nothing of how bounds are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsd_decoding.errors import UsageError
from fsd_decoding.profile_curve import Configuration, CurvePoint
from fsd_decoding.profile_parts import Certificate
from fsd_decoding.profile_policy import PolicyInfo, moved

if TYPE_CHECKING:
    from fsd_decoding.threshold_policy import ScalePolicy


@dataclass(frozen=True)
class Choice:
    """A point of the curve, as `ThresholdProfile.at` picks it. `certified` False: it merely measured so. `policy`:
    what moves T; None: nothing does. `draft`: the id of the model to draft with; None: the profile's own."""

    rule: str
    divergence: str
    threshold: float
    draft_length: int
    certified: bool
    policy: PolicyInfo | None = None
    draft: str | None = None

    @property
    def moved(self) -> float | ScalePolicy:
        """T as `generate` takes it: moved by the policy where there is one."""
        return moved(self.threshold, self.policy)


@dataclass(frozen=True)
class Choosing:
    """Of `curve`, by what it holds; `chosen` is the profile's own choice, as points have their `configuration`.

    Simultaneous bounds hold for whichever point is chosen by them. Bounds that hold each by itself do so only
    where there is a single one: with more, only the profile's own choice stays certified, for what it was
    certified for.
    """

    curve: Sequence[CurvePoint]
    certificate: Certificate
    chosen: Configuration

    def by_accuracy(self, min_acc: float) -> Choice:
        """The fastest that keeps this retention; one certified to do so goes before those that measured so.

        UsageError: there is none.
        """
        guaranteed = [p for p in self._bounded() if self._guarantee(p) >= min_acc]
        measured = [p for p in self._lossy() if p.retention >= min_acc and not self._refuted(p, min_acc)]
        if not measured and not guaranteed:
            raise UsageError(f"min_acc is {min_acc}; no point of the curve keeps that much")
        return _choice(max(guaranteed or measured, key=_pace), bool(guaranteed))

    def by_speed(self, min_speed: float) -> Choice:
        """The most accurate of those that are forecast to make so many tokens/s. UsageError: there is none."""
        reached = [p for p in self._lossy() if (p.forecast or 0.0) >= min_speed]
        if not reached:
            fastest = max((p.forecast or 0.0 for p in self._lossy()), default=0.0)
            raise UsageError(
                f"min_speed is {min_speed}; the curve's fastest point is forecast to make {fastest:.4g} tokens/s"
            )
        best = max(reached, key=lambda p: p.retention)
        return _choice(best, best in self._bounded() and self._holds_whoever_chose(best))

    def _refuted(self, point: CurvePoint, min_acc: float) -> bool:
        """Whether a stricter threshold of its arm fell short on the certification part: then it was lucky."""
        return point.source == "tuning" and any(
            p.arm == point.arm and (p.threshold or 0.0) <= (point.threshold or 0.0) and p.retention < min_acc
            for p in self._lossy()
            if p.source == "certification"
        )

    def _guarantee(self, point: CurvePoint) -> float:
        """The retention that holds for a point with a bound, whoever chose it and when."""
        if self._holds_whoever_chose(point):
            return point.lower_bound or 0.0
        mine = point.configuration == self.chosen
        return (self.certificate.wanted or 0.0) if mine and self.certificate.acc == "retention" else 0.0

    def _holds_whoever_chose(self, point: CurvePoint) -> bool:
        return point.simultaneous or len(self._bounded()) == 1

    def _lossy(self) -> list[CurvePoint]:
        """Points of a few problems, by which a search gave up on a threshold, are not to choose by."""
        most = max((p.problems for p in self.curve if p.source == "tuning"), default=0)
        return [
            p for p in corrected(self.curve)
            if p.threshold is not None and (p.source == "certification" or 2 * p.problems >= most)
        ]  # fmt: skip

    def _bounded(self) -> list[CurvePoint]:
        if self.certificate.guarantee == "none":
            return []
        return [p for p in self._lossy() if p.lower_bound is not None]


def corrected(curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    """What the tuning part said of a configuration, the certification part corrects."""
    better = {p.configuration for p in curve if p.source == "certification"}
    return [p for p in curve if p.source == "certification" or p.configuration not in better]


def _pace(point: CurvePoint) -> tuple[float, float]:
    return point.forecast or 0.0, point.tokens_per_round


def _choice(point: CurvePoint, certified: bool) -> Choice:
    assert point.threshold is not None
    return Choice(
        point.rule, point.divergence, point.threshold, point.draft_length, certified, point.policy, point.draft
    )
