"""What a search asks of a goal. Knows no goal in particular."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.history import History, Tried
from fsd_calib.search.space import Point, Space


class Assessment(NamedTuple):
    """value: to be maximised. shortfall: feasible where <= 0. settled: whether the rest of the tuning part would
    hardly change that."""

    value: float
    shortfall: float
    settled: bool


class PairedMeasurement(NamedTuple):
    """fuzzy, target: on the same problems. whole: how many the tuning part has."""

    fuzzy: Measurement
    target: Measurement
    whole: int


class Objective(Protocol):
    @property
    def asked(self) -> str:
        """In words that differ where two studies must not be mixed."""
        ...

    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Where to try next; None: nothing is worth it. From its arguments alone, so that a search resumes."""
        ...

    def why_not(self, arm: Configuration, history: History, space: Space, forecast: Forecast) -> str:
        """Of an arm that was never tried."""
        ...

    def judge(self, seen: PairedMeasurement, forecast: Forecast) -> Assessment: ...

    def freeze(
        self, tried: Sequence[Tried], space: Space, evaluator: Evaluator, target: Measurement, forecast: Forecast
    ) -> list[Configuration]: ...


def retention(fuzzy: Measurement, target: Measurement) -> float:
    """Where the target solves nothing, nothing is lost: 1."""
    return fuzzy.accuracy / target.accuracy if target.accuracy else 1.0
