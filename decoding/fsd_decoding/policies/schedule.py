"""A schedule: T as a function of a token's position in its completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fsd_common.argument_checks import amount, check_count
from fsd_common.errors import UsageError
from fsd_decoding.policies.rounds import RoundState
from fsd_decoding.policies.scale import Shape, share
from fsd_decoding.policies.threshold import Array


class Schedule(Shape):
    """Moves T linearly from `start` at a completion's first token to `end` after `over` tokens, and keeps it there.

    `threshold` is the largest T of the schedule; `at` scales the whole schedule to another one. Where T is 0, no
    divergence is accepted.
    """

    name: ClassVar = "schedule"
    columns = ("position",)

    def __init__(self, start: float, end: float, over: int) -> None:
        check_count("over", over)
        self._set_points([(0, amount("start", start)), (int(over), amount("end", end))])

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> Self:
        """Returns a schedule that is linear between points (position, T), and constant before the first and after the
        last. Positions count from 0 and must rise."""
        schedule = cls.__new__(cls)
        schedule._set_points(_check_points(points))
        return schedule

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        (points,) = parameters.values()
        return cls.through(points)

    def _set_points(self, points: list[tuple[int, float]]) -> None:
        self.threshold = max(t for _, t in points)
        if not self.threshold:
            raise UsageError("the schedule is 0 everywhere; one T must be above 0 (Constant(-1) is lossless)")
        self.points = [(position, share(t, self.threshold)) for position, t in points]  # (position, scale)
        near = [max(position + step, 0) for position, _ in points for step in (-1, 0, 1)]
        self.least = float(min(scale for scale in self._scale_at(torch.tensor(near)).tolist() if scale > 0))
        self.identity = self.describe(points=self.points)

    def scales(self, state: RoundState) -> Tensor:
        return self._scale_at(state.places)

    def traced(self, columns: Mapping[str, Array]) -> Array:
        scales: Array = self._scale_at(torch.from_numpy(columns["position"])).numpy()
        return scales

    def _scale_at(self, positions: Tensor) -> Tensor:
        """Returns the scales at positions (…), as (…) float64. Uses Python numbers only: nothing has to be copied to
        the device."""
        positions = positions.double()
        scales = torch.full_like(positions, self.points[0][1])
        for (a, low), (b, high) in pairwise(self.points):
            weight = ((positions - a) / (b - a)).clamp(0.0, 1.0)
            scales = torch.where(positions > a, low * (1.0 - weight) + high * weight, scales)
        return scales


def _check_points(points: object) -> list[tuple[int, float]]:
    if not isinstance(points, Sequence) or isinstance(points, str) or not points:
        raise UsageError(f"points is {points!r:.60}; it must be a list of (position, T) with at least one entry")
    checked = [_check_point(point) for point in points]
    for (a, _), (b, _) in pairwise(checked):
        if b <= a:
            raise UsageError(f"position {b} follows position {a} in the schedule; positions must rise")
    return checked


def _check_point(point: object) -> tuple[int, float]:
    if not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2:
        raise UsageError(f"a point of the schedule is {point!r:.60}; it must be (position, T)")
    position, threshold = point
    if isinstance(position, bool) or not isinstance(position, Integral) or position < 0:
        raise UsageError(f"a position of the schedule is {position!r:.60}; it must be a whole number of 0 or more")
    return int(position), amount(f"T at position {position}", threshold)
