"""Choosing another point of a profile's curve, later: what may be said of it, and what may not.

Knows points, their bounds, and what the certificate was made for. Knows nothing of how bounds are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fsd_decoding.errors import UsageError
from fsd_decoding.profile.curve import Configuration, CurvePoint
from fsd_decoding.profile.parts import Certificate
from fsd_decoding.profile.policy import PolicyInfo, moved

if TYPE_CHECKING:
    from fsd_decoding.policies.threshold import ScalePolicy


@dataclass(frozen=True)
class Choice:
    """A point of the curve, as `ThresholdProfile.at` picks it.

    certified: whether what was asked for is; False: it merely measured so. retention: as measured; of a tuning point no
    more than stricter thresholds kept on the certification part. lower_bound: the retention that is certified; None:
    none is. forecast: tokens/s. policy: what moves T; None: nothing does. draft: the id of the model to draft with;
    None: the profile's own.
    """

    rule: str
    divergence: str
    threshold: float
    draft_length: int
    certified: bool
    retention: float
    lower_bound: float | None
    forecast: float | None
    policy: PolicyInfo | None = None
    draft: str | None = None

    @property
    def moved(self) -> float | ScalePolicy:
        """T as `generate` takes it: moved by the policy where there is one."""
        return moved(self.threshold, self.policy)


@dataclass(frozen=True)
class Choosing:
    """Of `curve`, by what it holds; `chosen` is the profile's own choice, as points have their `configuration`.

    Points are judged by the retention that is certified of them or, where `certified` is False, by what was measured,
    never by some of each: so what does for a stricter wish does for a looser one too, and a stricter wish is never
    answered with a better point.

    Simultaneous bounds hold for whichever point is chosen by them. Bounds that hold each by itself do so only
    where there is a single one: with more, only the profile's own choice stays certified, for what it was
    certified for. divergence: the only one of which anything is certified; None: any may be.
    """

    curve: Sequence[CurvePoint]
    certificate: Certificate
    chosen: Configuration
    certified: bool = True
    divergence: str | None = None

    def by_accuracy(self, min_acc: float) -> Choice:
        """The fastest that keeps this retention. UsageError: there is none."""
        judged = self._judged()
        kept = [j for j in judged if j.retention >= min_acc]
        if not kept:
            most = max(judged, key=lambda j: j.retention, default=None)
            raise UsageError(f"min_acc is {min_acc}, {self._instead('keeps most', most)}")
        point = max(kept, key=lambda j: (_pace(j.point), j.retention)).point
        sure = self._guarantee(point)
        return self._choice(point, sure is not None and sure >= min_acc)

    def by_speed(self, min_speed: float) -> Choice:
        """The most accurate of those that made so many tokens/s. UsageError: there is none."""
        judged = self._judged()
        reached = [j for j in judged if _pace(j.point)[0] >= min_speed]
        if not reached:
            fastest = max(judged, key=lambda j: _pace(j.point), default=None)
            raise UsageError(f"min_speed is {min_speed}, {self._instead('is fastest', fastest)}")
        point = max(reached, key=lambda j: (j.retention, _pace(j.point))).point
        return self._choice(point, self._guarantee(point) is not None)

    def _choice(self, point: CurvePoint, certified: bool) -> Choice:
        assert point.threshold is not None
        return Choice(
            point.rule, point.divergence, point.threshold, point.draft_length, certified, self._measured(point),
            self._guarantee(point), point.forecast, point.policy, point.draft,
        )  # fmt: skip

    def _instead(self, superlative: str, best: _Judged | None) -> str:
        """What there is in place of what was asked, and the way out."""
        such = "certified" if self.certified else "measured"
        without = "certified=False takes what merely measured so"
        if best is None:
            return f"and no point of the curve is {such}" + (f"; {without}" if self.certified else "")
        said = f"but the {such} point that {superlative} is {best}"
        return f"{said}; ask for less" + (f", or {without}" if self.certified else "")

    def _judged(self) -> list[_Judged]:
        """What may be chosen."""
        if not self.certified:
            return [_Judged(p, self._measured(p)) for p in self._lossy()]
        return [_Judged(p, sure) for p in self._lossy() if (sure := self._guarantee(p)) is not None]

    def _measured(self, point: CurvePoint) -> float:
        """On the tuning part no more than stricter thresholds of its arm kept on the certification part: the rest was
        luck."""
        stricter = [
            p.retention for p in self._lossy()
            if p.source == "certification" and p.arm == point.arm and (p.threshold or 0.0) <= (point.threshold or 0.0)
        ]  # fmt: skip
        return point.retention if point.source == "certification" else min([point.retention, *stricter])

    def _guarantee(self, point: CurvePoint) -> float | None:
        """The retention that holds for a point, whoever chose it and when; None: none does."""
        bounded = self._bounded()
        if point not in bounded or self.divergence not in (None, point.divergence):
            return None
        if point.simultaneous or len(bounded) == 1:
            return point.lower_bound
        own = point.configuration == self.chosen and self.certificate.certified
        return self.certificate.wanted if own and self.certificate.acc == "retention" else None

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


class _Judged(NamedTuple):
    """A point and the retention it is judged by."""

    point: CurvePoint
    retention: float

    def __str__(self) -> str:
        """Rounded down, so that asking for that much is granted."""
        p = self.point
        pace = "" if p.forecast is None else f", {_down(p.forecast, 1)} tokens/s"
        named = f"{p.rule} {p.divergence} <= {p.threshold:.4g} at L = {p.draft_length}"
        return f"{named} (retention {_down(self.retention, 4)}{pace})"


def _down(value: float, digits: int) -> str:
    """The largest number of so few digits that, read again, is no larger."""
    near = round(value, digits)
    lower = near if near <= value else round(near - 10**-digits, digits)
    return f"{lower:.{digits}f}".rstrip("0").rstrip(".")


def corrected(curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    """What the tuning part said of a configuration, the certification part corrects."""
    better = {p.configuration for p in curve if p.source == "certification"}
    return [p for p in curve if p.source == "certification" or p.configuration not in better]


def _pace(point: CurvePoint) -> tuple[float, float]:
    return point.forecast or 0.0, point.tokens_per_round
