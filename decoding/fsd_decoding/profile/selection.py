"""Selection of another point of a profile's curve after calibration, and what is certified of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsd_common.errors import UsageError
from fsd_decoding.profile.certificate import Certificate
from fsd_decoding.profile.fields import CurvePoint
from fsd_decoding.profile.setting import Setting
from fsd_decoding.tree_shape import CHAIN, Chain, TreeShape

if TYPE_CHECKING:
    from fsd_decoding.policies.threshold import ScalePolicy


@dataclass(frozen=True)
class Choice:
    """A point of the curve, as `ThresholdProfile.at` returns it.

    Attributes:
        certified: whether the requested retention is certified; False: it was only measured. For a choice by speed,
            whether any retention is.
        retention: as measured; for a point of the tuning part at most what stricter thresholds retained on the
            certification part.
        lower_bound: the certified retention; None: none is.
        forecast: tokens/s of one stream.
    """

    setting: Setting
    certified: bool
    retention: float
    lower_bound: float | None
    forecast: float | None

    @property
    def threshold(self) -> float:
        """T alone; see `moved`."""
        assert self.setting.threshold is not None
        return self.setting.threshold

    @property
    def moved(self) -> float | ScalePolicy:
        """T in the form that `generate` takes: a number, or the policy at this T."""
        moved = self.setting.moved
        assert moved is not None
        return moved

    @property
    def draft_length(self) -> int:
        return self.setting.draft_length

    @property
    def draft(self) -> str | None:
        """The id of what to draft with, see `profile.drafts.draft_of`; None: the profile's own."""
        return self.setting.draft

    @property
    def tree(self) -> TreeShape | Chain:
        """The shape of the trees to draft, or "chain", as decoders take it."""
        return self.setting.tree or CHAIN


@dataclass(frozen=True)
class PointSelector:
    """Chooses points of `curve` by retention or by speed.

    All points are judged either by their certified retention or, if `certified` is False, by their measured retention.
    So a point that fulfils a stricter request fulfils a looser one too, and a stricter request never returns a better
    point.

    Simultaneous bounds hold for whichever point is chosen by them. Bounds that hold each by itself remain valid only if
    there is a single one; of several, only the profile's own choice stays certified, for what it was certified for.

    Attributes:
        certificate: of the profile.
        chosen: the profile's own choice.
        score: the only one that bounds apply to, since an early stop changes decoding with any other; None: all.
    """

    curve: Sequence[CurvePoint]
    certificate: Certificate
    chosen: Setting
    certified: bool = True
    score: str | None = None

    def by_accuracy(self, min_acc: float) -> Choice:
        """Returns the fastest point with this retention. Raises UsageError if there is none."""
        judged = self._judged()
        kept = [(point, retention) for point, retention in judged if retention >= min_acc]
        if not kept:
            most = max(judged, key=lambda each: each[1], default=None)
            raise UsageError(f"min_acc is {min_acc}, {self._instead('with the highest retention', most, 'min_acc')}")
        point, _ = max(kept, key=lambda each: (_pace(each[0]), each[1]))
        sure = self._guarantee(point)
        return self._choice(point, sure is not None and sure >= min_acc)

    def by_speed(self, min_speed: float) -> Choice:
        """Returns the most accurate point that makes so many tokens/s. Raises UsageError if there is none."""
        judged = self._judged()
        reached = [(point, retention) for point, retention in judged if _pace(point)[0] >= min_speed]
        if not reached:
            fastest = max(judged, key=lambda each: _pace(each[0]), default=None)
            raise UsageError(
                f"min_speed is {min_speed}, {self._instead('with the highest speed', fastest, 'min_speed')}"
            )
        point, _ = max(reached, key=lambda each: (each[1], _pace(each[0])))
        return self._choice(point, self._guarantee(point) is not None)

    def _choice(self, point: CurvePoint, certified: bool) -> Choice:
        return Choice(point.setting, certified, self._measured(point), self._guarantee(point), point.forecast)

    def _instead(self, superlative: str, best: tuple[CurvePoint, float] | None, name: str) -> str:
        """Returns the rest of a message: the best point there is, and the way out."""
        kind = "certified" if self.certified else "measured"
        without = "certified=False to choose by measured values"
        if best is None:
            return f"but no point of the curve is {kind}" + (f"; set {without}" if self.certified else "")
        rest = f"but the {kind} point {superlative} is {_described(*best)}; set a lower {name}"
        return rest + (f", or {without}" if self.certified else "")

    def _judged(self) -> list[tuple[CurvePoint, float]]:
        """Returns the points that may be chosen, with the retention that each is judged by."""
        if not self.certified:
            return [(p, self._measured(p)) for p in self._lossy()]
        return [(p, sure) for p in self._lossy() if (sure := self._guarantee(p)) is not None]

    def _measured(self, point: CurvePoint) -> float:
        """Returns a point's measured retention. On the tuning part it is capped by what stricter thresholds of the arm
        retained on the certification part, since anything above that was chance."""
        stricter = [
            p.retention for p in self._lossy()
            if p.source == "certification" and p.setting.arm == point.setting.arm and _threshold(p) <= _threshold(point)
        ]  # fmt: skip
        return point.retention if point.source == "certification" else min([point.retention, *stricter])

    def _guarantee(self, point: CurvePoint) -> float | None:
        """Returns the retention that is certified for a point even if it is chosen after the fact; None: none is."""
        bounded = self._bounded()
        if point not in bounded or self.score not in (None, point.setting.score):
            return None
        claimed = self.certificate.certified and self.certificate.wanted is not None
        if point.simultaneous or (len(bounded) == 1 and not claimed):
            return point.lower_bound
        own = point.setting == self.chosen and self.certificate.certified
        return self.certificate.wanted if own and self.certificate.acc == "retention" else None

    def _lossy(self) -> list[CurvePoint]:
        """Returns points with a threshold. Those of few problems, which the search stopped early, are left out."""
        most = max((p.problems for p in self.curve if p.source == "tuning"), default=0)
        return [
            p for p in corrected(self.curve)
            if p.setting.threshold is not None and (p.source == "certification" or 2 * p.problems >= most)
        ]  # fmt: skip

    def _bounded(self) -> list[CurvePoint]:
        if self.certificate.guarantee == "none":
            return []
        return [p for p in self._lossy() if p.lower_bound is not None]


def _described(p: CurvePoint, retention: float) -> str:
    """Describes a point with numbers rounded down, so that a request for them succeeds."""
    pace = "" if p.forecast is None else f", {_down(p.forecast, 1)} tokens/s"
    return f"{p.setting} (retention {_down(retention, 4)}{pace})"


def _down(value: float, digits: int) -> str:
    """Returns the largest number with so many digits that is at most `value`."""
    near = round(value, digits)
    lower = near if near <= value else round(near - 10**-digits, digits)
    return f"{lower:.{digits}f}".rstrip("0").rstrip(".")


def corrected(curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Returns the curve without points of the tuning part whose setting has one of the certification part."""
    certified = {p.setting for p in curve if p.source == "certification"}
    return [p for p in curve if p.source == "certification" or p.setting not in certified]


def _threshold(point: CurvePoint) -> float:
    return point.setting.threshold or 0.0


def _pace(point: CurvePoint) -> tuple[float, float]:
    return point.forecast or 0.0, point.tokens_per_round
