"""Speeds in tokens/s of one stream, timed or forecast, with confidence intervals by Wilcoxon's signed ranks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student


def centre(values: Floats, miss: float) -> tuple[float, float, float]:
    """Returns the Hodges–Lehmann estimate, the median of the means of all pairs, and the ends of a central interval.

    The interval holds the centres that Wilcoxon's signed-rank test does not reject (Hodges and Lehmann, 1963). It is
    exact for independent values that are each symmetric about the centre, however widely each of them scatters: the
    noise may have no variance, and change from one value to the next, as it does on a busy machine.

    Args:
        miss: the probability, at most, that the interval misses the centre. Its ends are infinite where the values are
            fewer than `fewest`.
    """
    first, second = np.triu_indices(len(values))
    means = np.sort((values[first] + values[second]) / 2)
    beyond = int(np.searchsorted(_distribution(len(values)), miss / 2, side="right"))
    low, high = (float(means[beyond - 1]), float(means[-beyond])) if beyond else (-np.inf, np.inf)
    return float(np.median(means)), low, high


def fewest(miss: float) -> int:
    """Returns how many values it takes for an interval with ends: 6 where it may miss with probability .05, 8 at .01.

    The interval of n values that is widest reaches from the least to the largest, and misses with probability 2 / 2^n.
    """
    return 2 - math.frexp(miss)[1]  # 1 - log2(miss), rounded up, whatever the rounding of a logarithm


@lru_cache
def _distribution(values: int) -> Floats:
    """Returns the probabilities that the sum of the positive ranks is at most 0, 1, …, where signs are random."""
    sums = np.zeros(values * (values + 1) // 2 + 1)
    sums[0] = 1.0
    for rank in range(1, values + 1):
        sums[rank:] = (sums[rank:] + sums[:-rank]) / 2
        sums[:rank] /= 2
    return sums.cumsum()


C = TypeVar("C", bound=Hashable)  # a setting
Floats = NDArray[np.float64]

Clock = Literal["wall", "cpu"]
"""Seconds of the wall's clock, or processor seconds of this process."""

_MUCH_NOISIER = 1.25


@dataclass(frozen=True)
class Interval:
    """An estimate, and a central interval around it, whose ends are infinite where too little was timed for any."""

    value: float
    low: float
    high: float

    @property
    def bounded(self) -> bool:
        """Whether both ends are known."""
        return bool(np.isfinite(self.high))

    def excludes(self, other: float) -> bool:
        """Returns whether a value lies outside."""
        return not self.low <= other <= self.high


class Speeds(ABC, Generic[C]):
    """Speeds of settings, and their ratios.

    Attributes:
        problems: Number of timed problems; 0: speeds are forecast, without an interval.
        processes: Number of fresh processes that each timed them; 0: they were timed in this process.
    """

    problems: int
    processes: int

    @property
    def timed(self) -> bool:
        return self.problems > 0

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """The clock that ratios are from."""

    @abstractmethod
    def of(self, setting: C) -> Interval:
        """Returns the speed in tokens/s of one stream, by the wall's clock."""

    @abstractmethod
    def ratio(self, fast: C, slow: C) -> Interval:
        """Returns the speed of `fast` divided by that of `slow`."""

    @abstractmethod
    def answer_seconds(self, setting: C) -> float | None:
        """Returns the seconds that a stream takes to answer a problem; None: nothing was timed."""


class ForecastSpeeds(Speeds[C]):
    """Speeds that were forecast, not timed: intervals have no width.

    Args:
        forecast: Returns a setting's tokens/s of one stream.
    """

    problems = processes = 0
    clock: Clock = "wall"

    def __init__(self, forecast: Callable[[C], float]) -> None:
        self._forecast = forecast

    def of(self, setting: C) -> Interval:
        return _zero_width(self._forecast(setting))

    def ratio(self, fast: C, slow: C) -> Interval:
        return _zero_width(self._forecast(fast) / self._forecast(slow))

    def answer_seconds(self, setting: C) -> float | None:
        return None


def _zero_width(value: float) -> Interval:
    return Interval(value, value, value)


@dataclass(frozen=True, eq=False)
class TimedRun(Generic[C]):
    """What one process timed, turn by turn: arrays (turns,), which are NaN where a setting had no turn.

    Attributes:
        pieces: The piece of work of each turn; it may come again.
        tokens: Emitted per stream.
        seconds: By clock and setting.
    """

    pieces: NDArray[np.int64]
    tokens: Mapping[C, Floats]
    seconds: Mapping[Clock, Mapping[C, Floats]]

    def log_rate(self, setting: C, clock: Clock) -> Floats:
        """Returns the logs of tokens/s, (turns,)."""
        rate: Floats = np.log(self.tokens[setting]) - np.log(self.seconds[clock][setting])
        return rate

    def by_piece(self, values: Floats) -> dict[int, float]:
        """Returns the median of the turns that a piece had: several turns of one piece count as one value."""
        had = ~np.isnan(values)
        pieces, values = self.pieces[had], values[had]
        return {int(piece): float(np.median(values[pieces == piece])) for piece in np.unique(pieces)}


@dataclass(frozen=True, eq=False)
class TimedSpeeds(Speeds[C]):
    """Speeds from one or several runs over the same pieces, which are averaged.

    A speed is that of a typical piece: the centre (see `centre`) of the pieces' own, in logs. A ratio is the centre of
    the pieces' own ratios, each of decodings next to each other. So single stalls change neither.

    Attributes:
        runs: One per process.
        problems: Number of timed problems, the same in each run.
        answers: Problems of a piece per stream.
        confidence: Of the intervals. With one run they cover the variation between pieces; with several also that
            between processes, such as memory layout, which is constant within a run.
        looks: How often timing might have stopped by what it showed. All intervals that might have been looked at hold
            together with `confidence`: each has its share of the error (Bonferroni).
    """

    runs: Sequence[TimedRun[C]]
    problems: int
    confidence: float
    processes: int = 0
    answers: float = 1.0
    looks: int = 1

    @property
    def clock(self) -> Clock:
        """The wall's, unless it is much noisier than the processor's in the pairs of the last two settings.

        Noise is the median absolute deviation of the pairs' log ratios, which does not depend on their centre. Users
        wait for the wall's seconds; the processor's leave out what other processes take.
        """
        if "cpu" not in self.runs[0].seconds:
            return "wall"
        *_, slow, fast = self.runs[0].tokens
        noise = {clock: _deviation(self._ratios(fast, slow, clock)) for clock in self.runs[0].seconds}
        return "cpu" if noise["wall"] > _MUCH_NOISIER * noise["cpu"] else "wall"

    def of(self, setting: C) -> Interval:
        return self._interval([run.by_piece(run.log_rate(setting, "wall")) for run in self.runs])

    def ratio(self, fast: C, slow: C) -> Interval:
        """Returns the ratio, paired by turn and process."""
        return self._interval(self._ratios(fast, slow, self.clock))

    def answer_seconds(self, setting: C) -> float:
        logs = [run.by_piece(np.log(run.seconds["wall"][setting] / self.answers)) for run in self.runs]
        return self._interval(logs).value

    def _ratios(self, fast: C, slow: C, clock: Clock) -> list[dict[int, float]]:
        """Returns the log ratios by piece, of each run."""
        return [run.by_piece(run.log_rate(fast, clock) - run.log_rate(slow, clock)) for run in self.runs]

    def _interval(self, logs: Sequence[dict[int, float]]) -> Interval:
        """Returns an interval from two independent errors: pieces, shared by all runs, and processes.

        Each has its own interval, and the widths are added in quadrature.
        """
        value, low, high = centre(_averaged(logs), (1 - self.confidence) / self.looks)
        between = self._between(np.array([centre(np.array([*run.values()]), 1.0)[0] for run in logs]))
        low, high = value - np.hypot(value - low, between), value + np.hypot(high - value, between)
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
    problems = min(measurement.problems for measurement in measurements)
    return TimedSpeeds(runs, problems, first.confidence, len(measurements), first.answers)


def _averaged(runs: Sequence[dict[int, float]]) -> Floats:
    """Returns the means over the runs, of the pieces that all of them have."""
    shared = set.intersection(*(set(run) for run in runs))
    return np.array([np.mean([run[piece] for run in runs]) for piece in sorted(shared)])


def _deviation(runs: Sequence[dict[int, float]]) -> float:
    """Returns the median absolute deviation from the median."""
    values = _averaged(runs)
    return float(np.median(np.abs(values - np.median(values))))
