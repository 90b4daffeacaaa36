"""Tokens a second of one stream, timed or forecast, and how sure they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import t as student

C = TypeVar("C", bound=Hashable)  # a configuration
Floats = NDArray[np.float64]

_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """An estimate, and a central interval around it."""

    value: float
    low: float
    high: float


class Speeds(ABC, Generic[C]):
    """How fast configurations are, each by itself and beside another.

    Attributes:
        problems: timed; 0: nothing was, and what is said is a forecast without an interval.
        processes: fresh ones that each timed them; 0: the process that asks did.
    """

    problems: int
    processes: int

    @property
    def timed(self) -> bool:
        return self.problems > 0

    @abstractmethod
    def of(self, configuration: C) -> Interval:
        """Tokens a second of one stream."""

    @abstractmethod
    def ratio(self, fast: C, slow: C) -> Interval:
        """How many times the speed of `slow` that of `fast` is."""


class ForecastSpeeds(Speeds[C]):
    """Speeds that were worked out, not timed: intervals have no width.

    Args:
        forecast: a configuration's tokens/s of one stream.
    """

    problems = processes = 0

    def __init__(self, forecast: Callable[[C], float]) -> None:
        self._forecast = forecast

    def of(self, configuration: C) -> Interval:
        return _exactly(self._forecast(configuration))

    def ratio(self, fast: C, slow: C) -> Interval:
        return _exactly(self._forecast(fast) / self._forecast(slow))


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)


@dataclass(frozen=True, eq=False)
class Run(Generic[C]):
    """What every configuration made of the same pieces of work in one process: arrays (pieces,), tokens emitted by one
    stream and seconds."""

    tokens: Mapping[C, Floats]
    seconds: Mapping[C, Floats]

    @property
    def pieces(self) -> int:
        return len(next(iter(self.tokens.values())))

    def log_rate(self, configuration: C, picked: Floats) -> Floats:
        """`picked` (…, pieces): how often each piece counts."""
        rate: Floats = np.log(picked @ self.tokens[configuration] / (picked @ self.seconds[configuration]))
        return rate


@dataclass(frozen=True, eq=False)
class TimedSpeeds(Speeds[C]):
    """Speeds by one or several runs over the same pieces; several are averaged as logarithms.

    Attributes:
        runs: of one process each.
        problems: timed, the same in each run.
        confidence: that an interval covers the truth. With one run it covers what other problems would change. With
            several also what another process would, such as where its memory lies, which within one run is invisible.
    """

    runs: Sequence[Run[C]]
    problems: int
    confidence: float
    processes: int = 0

    @property
    def pieces(self) -> int:
        return self.runs[0].pieces

    def of(self, configuration: C) -> Interval:
        return self._interval(lambda run, picked: run.log_rate(configuration, picked))

    def ratio(self, fast: C, slow: C) -> Interval:
        """Piece by piece on the same problems, in the same process."""
        return self._interval(lambda run, picked: run.log_rate(fast, picked) - run.log_rate(slow, picked))

    def _interval(self, log_of: Callable[[Run[C], Floats], Floats]) -> Interval:
        """Two independent errors, each with its own interval, whose widths add up as their squares do: the pieces
        drawn, which all runs share, and the processes."""
        whole = np.array([log_of(run, np.ones(self.pieces)) for run in self.runs])
        value = whole.mean()
        resampled = np.mean([log_of(run, _picked(self.pieces)) for run in self.runs], axis=0)
        tail = _expanded_tail(self.pieces, 1 - self.confidence)
        below, above = value - np.quantile(resampled, tail), np.quantile(resampled, 1 - tail) - value
        between = self._between(whole)
        low, high = value - np.hypot(max(below, 0), between), value + np.hypot(max(above, 0), between)
        return Interval(*(float(np.exp(log)) for log in (value, low, high)))

    def _between(self, logs: Floats) -> float:
        """Half the width of Student's interval around the mean of processes; of one alone nothing is known."""
        n = len(logs)
        return 0.0 if n == 1 else float(student.isf((1 - self.confidence) / 2, n - 1) * logs.std(ddof=1) / n**0.5)


def pool_processes(measured: Sequence[TimedSpeeds[C]]) -> TimedSpeeds[C]:
    """One measurement of several that fresh processes made of the same problems."""
    first = measured[0]
    runs = [run for one in measured for run in one.runs]
    return TimedSpeeds(runs, first.problems, first.confidence, len(measured))


def _picked(pieces: int) -> Floats:
    """(resamples, pieces): how often each piece counts in a bootstrap, with a fixed seed."""
    drawn = np.random.default_rng(0).multinomial(pieces, np.full(pieces, 1 / pieces), _RESAMPLES)
    return drawn.astype(np.float64)


def _expanded_tail(pieces: int, miss: float) -> float:
    """The share of resamples beyond either end.

    Percentiles reach as far as Student's t with pieces - 1 degrees of freedom would and make up for the spread that
    resampling lacks ("expanded percentiles": Hesterberg, What teachers should know about the bootstrap, 2014, section
    3.3): without that, ten pieces' 95 % cover some 90 %.
    """
    return float(ndtr(student.ppf(miss / 2, pieces - 1) * (pieces / (pieces - 1)) ** 0.5))
