"""Speeds in tokens/s of one stream, timed or forecast, with confidence intervals."""

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
    """Speeds of configurations, and their ratios.

    Attributes:
        problems: Number of timed problems; 0: speeds are forecast, without an interval.
        processes: Number of fresh processes that each timed them; 0: they were timed in this process.
    """

    problems: int
    processes: int

    @property
    def timed(self) -> bool:
        return self.problems > 0

    @abstractmethod
    def of(self, configuration: C) -> Interval:
        """Returns the speed in tokens/s of one stream."""

    @abstractmethod
    def ratio(self, fast: C, slow: C) -> Interval:
        """Returns the speed of `fast` divided by that of `slow`."""

    @abstractmethod
    def answer_seconds(self, configuration: C) -> float | None:
        """Returns the seconds that a stream takes for each problem; None: nothing was timed."""


class ForecastSpeeds(Speeds[C]):
    """Speeds that were forecast, not timed: intervals have no width.

    Args:
        forecast: Returns a configuration's tokens/s of one stream.
    """

    problems = processes = 0

    def __init__(self, forecast: Callable[[C], float]) -> None:
        self._forecast = forecast

    def of(self, configuration: C) -> Interval:
        return _zero_width(self._forecast(configuration))

    def ratio(self, fast: C, slow: C) -> Interval:
        return _zero_width(self._forecast(fast) / self._forecast(slow))

    def answer_seconds(self, configuration: C) -> float | None:
        return None


def _zero_width(value: float) -> Interval:
    return Interval(value, value, value)


@dataclass(frozen=True, eq=False)
class TimedRun(Generic[C]):
    """The timings of the same pieces of work in one process: arrays (pieces,) of tokens emitted per stream, and of
    seconds; and the number of problems that a stream answers in each piece."""

    tokens: Mapping[C, Floats]
    seconds: Mapping[C, Floats]
    answers: float = 1.0

    @property
    def pieces(self) -> int:
        return len(next(iter(self.tokens.values())))

    def log_rate(self, configuration: C, weights: Floats) -> Floats:
        """Returns the log of tokens/s, where `weights`, (…, pieces), says how often each piece counts."""
        rate: Floats = np.log(weights @ self.tokens[configuration] / (weights @ self.seconds[configuration]))
        return rate


@dataclass(frozen=True, eq=False)
class TimedSpeeds(Speeds[C]):
    """Speeds from one or several runs over the same pieces; the logarithms of several runs are averaged.

    Attributes:
        runs: One per process.
        problems: Number of timed problems, the same in each run.
        confidence: Of the intervals. With one run they cover the variation between problems; with several also that
            between processes, such as memory layout, which is constant within a run.
    """

    runs: Sequence[TimedRun[C]]
    problems: int
    confidence: float
    processes: int = 0

    @property
    def pieces(self) -> int:
        return self.runs[0].pieces

    def of(self, configuration: C) -> Interval:
        return self._interval(lambda run, weights: run.log_rate(configuration, weights))

    def ratio(self, fast: C, slow: C) -> Interval:
        """Returns the ratio, paired by piece and process."""
        return self._interval(lambda run, weights: run.log_rate(fast, weights) - run.log_rate(slow, weights))

    def answer_seconds(self, configuration: C) -> float:
        return float(np.mean([run.seconds[configuration].mean() / run.answers for run in self.runs]))

    def _interval(self, log_of: Callable[[TimedRun[C], Floats], Floats]) -> Interval:
        """Returns an interval from two independent errors: pieces drawn, shared by all runs, and processes.

        Each has its own interval, and the widths are added in quadrature.
        """
        whole = np.array([log_of(run, np.ones(self.pieces)) for run in self.runs])
        value = whole.mean()
        resampled = np.mean([log_of(run, _bootstrap_weights(self.pieces)) for run in self.runs], axis=0)
        tail = _expanded_tail(self.pieces, 1 - self.confidence)
        below, above = value - np.quantile(resampled, tail), np.quantile(resampled, 1 - tail) - value
        between = self._between(whole)
        low, high = value - np.hypot(max(below, 0), between), value + np.hypot(max(above, 0), between)
        return Interval(*(float(np.exp(log)) for log in (value, low, high)))

    def _between(self, logs: Floats) -> float:
        """Returns half the width of Student's interval of the mean over processes; 0 for a single run, which shows
        nothing."""
        n = len(logs)
        return 0.0 if n == 1 else float(student.isf((1 - self.confidence) / 2, n - 1) * logs.std(ddof=1) / n**0.5)


def pool_processes(measurements: Sequence[TimedSpeeds[C]]) -> TimedSpeeds[C]:
    """Pools the measurements of the same problems by several fresh processes."""
    first = measurements[0]
    runs = [run for measurement in measurements for run in measurement.runs]
    return TimedSpeeds(runs, first.problems, first.confidence, len(measurements))


def _bootstrap_weights(pieces: int) -> Floats:
    """Returns, (resamples, pieces), how often each piece counts in a bootstrap with a fixed seed."""
    counts = np.random.default_rng(0).multinomial(pieces, np.full(pieces, 1 / pieces), _RESAMPLES)
    return counts.astype(np.float64)


def _expanded_tail(pieces: int, miss: float) -> float:
    """Returns the share of resamples beyond either end of the interval.

    Percentiles are expanded to the width of Student's t with pieces - 1 degrees of freedom, and for the variance that
    resampling lacks ("expanded percentiles": Hesterberg, What Teachers Should Know about the Bootstrap, 2014, section
    3.3). Without that, the 95 % interval of ten pieces covers some 90 %.
    """
    return float(ndtr(student.ppf(miss / 2, pieces - 1) * (pieces / (pieces - 1)) ** 0.5))
