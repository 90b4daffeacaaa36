"""T by a token's place in its completion. Knows places, and nothing of what stands there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fsd_decoding.errors import UsageError
from fsd_decoding.policies.scale import Shape, share
from fsd_decoding.policies.threshold import Array, RoundState
from fsd_decoding.validation import amount, check_count


class Schedule(Shape):
    """From T = `start` at a completion's first token to `end` behind `over` tokens, linearly; `end` from there on.

    Its `threshold` is the largest T; `at` loosens or tightens the whole. Where T is 0, no divergence accepts.
    """

    name: ClassVar = "schedule"
    columns = ("position",)

    def __init__(self, start: float, end: float, over: int) -> None:
        check_count("over", over)
        self._lead([(0, amount("start", start)), (int(over), amount("end", end))])

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> Self:
        """Linear between points (place, T), places counted from 0 and rising; constant before the first and after
        the last."""
        made = cls.__new__(cls)
        made._lead(_checked(points))
        return made

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        (points,) = parameters.values()
        return cls.through(points)

    def _lead(self, points: list[tuple[int, float]]) -> None:
        self.threshold = max(t for _, t in points)
        if not self.threshold:
            raise UsageError("the schedule is 0 everywhere; one T must be above 0 (Constant(-1) is lossless)")
        self.points = [(place, share(t, self.threshold)) for place, t in points]  # (place, scale)
        near = [max(place + step, 0) for place, _ in points for step in (-1, 0, 1)]
        self.least = float(min(scale for scale in self._at(torch.tensor(near)).tolist() if scale > 0))
        self.identity = self.identified(points=self.points)

    def scales(self, state: RoundState) -> Tensor:
        return self._at(state.places)

    def traced(self, columns: Mapping[str, Array]) -> Array:
        scales: Array = self._at(torch.from_numpy(columns["position"])).numpy()
        return scales

    def _at(self, places: Tensor) -> Tensor:
        """Scales at places (…): (…) float64. Of numbers of the host alone: nothing is sent to the device."""
        places = places.double()
        scales = torch.full_like(places, self.points[0][1])
        for (a, low), (b, high) in pairwise(self.points):
            way = ((places - a) / (b - a)).clamp(0.0, 1.0)
            scales = torch.where(places > a, low * (1.0 - way) + high * way, scales)
        return scales


def _checked(points: object) -> list[tuple[int, float]]:
    if not isinstance(points, Sequence) or isinstance(points, str) or not points:
        raise UsageError(f"points is {points!r:.60}; it must be a list of (place, T), at least one")
    found = [_point(point) for point in points]
    for (a, _), (b, _) in pairwise(found):
        if b <= a:
            raise UsageError(f"the schedule's place {b} comes after {a}; places must rise")
    return found


def _point(point: object) -> tuple[int, float]:
    if not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2:
        raise UsageError(f"a point of the schedule is {point!r:.60}; it must be (place, T)")
    place, threshold = point
    if isinstance(place, bool) or not isinstance(place, Integral) or place < 0:
        raise UsageError(f"a place of the schedule is {place!r:.60}; it must be a whole number of 0 or more")
    return int(place), amount(f"T at place {place}", threshold)
