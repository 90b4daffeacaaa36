"""The interface between a search and its objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fsd_calib.engines.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.history import FinishedTrial, History
from fsd_calib.search.space import Point, Space


class Assessment(NamedTuple):
    """An objective's result for one trial.

    Attributes:
        value: To be maximised.
        shortfall: The constraint; feasible where <= 0.
        settled: Whether the rest of the tuning part is unlikely to change the feasibility.
    """

    value: float
    shortfall: float
    settled: bool


class PairedMeasurement(NamedTuple):
    """A setting and the target on the same problems.

    Attributes:
        whole: How many problems the tuning part has.
    """

    fuzzy: Measurement
    target: Measurement
    whole: int


class Objective(Protocol):
    """Proposes, assesses and freezes configurations."""

    @property
    def description(self) -> str:
        """A text that differs between searches whose studies must not be mixed."""
        ...

    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Returns the next point to try; None: no further trial is worthwhile.

        Depends on its arguments only, so that a search can resume.
        """
        ...

    def reason_untried(self, arm: Configuration, history: History, space: Space, forecast: Forecast) -> str:
        """Returns why an arm was not tried, as part of a sentence."""
        ...

    def assess(self, paired: PairedMeasurement, forecast: Forecast) -> Assessment:
        """Returns value and feasibility of a trial on the problems decoded so far."""
        ...

    def freeze(
        self,
        trials: Sequence[FinishedTrial],
        space: Space,
        evaluator: Evaluator,
        target: Measurement,
        forecast: Forecast,
    ) -> list[Configuration]:
        """Returns the configurations to certify, safest first."""
        ...


def retention(fuzzy: Measurement, target: Measurement) -> float:
    """Returns the setting's accuracy over the target's; 1 where the target solves nothing, since nothing can be
    lost."""
    return fuzzy.accuracy / target.accuracy if target.accuracy else 1.0
