"""From a wish to frozen configurations, on the tuning part alone.

Knows what to search for and which of the tried thresholds to put to the test, in which order. Knows
nothing of the certification part but its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fsd_calib.measure import Bench, Configuration, Measurement
from fsd_calib.power import power
from fsd_calib.search import Evaluate, ShareScale, search_threshold
from fsd_calib.speed import seconds_per_round
from fsd_calib.wish import Wish

_CHANCES = (0.95, 0.8, 0.5, 0.2)  # of passing: the frozen sequence has at most one configuration for each
_WANTED_CHANCE = 0.8  # where the bisection closes in
_SPEED_MARGIN = 1.03  # over what was asked, because timings are noisy
_TIMED_PROBLEMS = 20


class Chooser:
    """Searches thresholds of one (rule, divergence, draft length)."""

    def __init__(
        self,
        bench: Bench,
        fuzzy: Configuration,
        alone: Measurement,
        scale: ShareScale,
        wish: Wish,
        trials: int,
        journal: Path | None,
    ) -> None:
        self._bench, self._fuzzy, self._alone, self._scale = bench, fuzzy, alone, scale
        self._wish, self._trials, self._journal = wish, trials, journal

    def sequence(self) -> list[Configuration]:
        """The configurations to put to the test, safest first; never empty."""
        return self._keeping_accuracy() if self._wish.min_acc is not None else [self._reaching_speed()]

    def _keeping_accuracy(self) -> list[Configuration]:
        def evaluate(threshold: float) -> tuple[float, float]:
            measured = self._measure(threshold)
            return measured.tokens_per_round, _WANTED_CHANCE - self._chance(measured)

        self._search(evaluate, upward=True)
        tried = self._bench.measured(self._fuzzy, "tuning")
        able = [[m for m in tried if self._chance(m) >= chance] for chance in _CHANCES]
        able.append([m for m in tried if self._chance(m, worse=True) >= max(_CHANCES)])
        rungs = {max(enough, key=_threshold) for enough in able if enough}
        chosen = sorted(rungs, key=_threshold) or [min(tried, key=_threshold)]
        return [measured.configuration for measured in chosen]

    def _chance(self, measured: Measurement, worse: bool = False) -> float:
        """Of passing the test on the certification part, if the tuning part shows the truth; `worse`: if its
        losses were lucky by about one standard deviation, which a small tuning part often is."""
        seen = measured.against(self._alone)
        more = min(math.ceil(math.sqrt(seen.lost + seen.gained + 1)), seen.both_right) if worse else 0
        seen = replace(seen, both_right=seen.both_right - more, lost=seen.lost + more)
        assert self._wish.min_acc is not None
        return power(
            problems=len(self._bench.problems["certification"]),
            accuracy=self._alone.accuracy,
            churn=seen.churn,
            retention=seen.retention,
            wanted=self._wish.min_acc,
            confidence=self._wish.confidence,
        )

    def _reaching_speed(self) -> Configuration:
        """The smallest threshold that is fast enough, by a last timing of all that were tried, in turn."""

        def evaluate(threshold: float) -> tuple[float, float]:
            measured = self._measure(threshold)
            return measured.tokens_per_round, self._shortfall([measured])[0]

        if evaluate(0.0)[1] <= 0:  # fast enough without losing anything
            return self._fuzzy.at(0.0)
        self._search(evaluate, upward=False)
        tried = self._bench.measured(self._fuzzy, "tuning")
        shortfalls = self._shortfall(tried)
        chosen = next((m for m, short in zip(tried, shortfalls, strict=True) if short <= 0), None)
        return (chosen or tried[shortfalls.index(min(shortfalls))]).configuration

    def _shortfall(self, measured: Sequence[Measurement]) -> list[float]:
        """How many tokens/s each lacks; the timings are in turn."""
        assert self._wish.min_speed is not None
        seconds = seconds_per_round(
            self._bench, [m.configuration for m in measured], self._bench.problems["tuning"][:_TIMED_PROBLEMS]
        )
        wanted = _SPEED_MARGIN * self._wish.min_speed
        return [wanted - m.tokens_per_round / seconds[m.configuration] for m in measured]

    def _measure(self, threshold: float) -> Measurement:
        return self._bench.measure(self._fuzzy.at(threshold), "tuning")

    def _search(self, evaluate: Evaluate, upward: bool) -> None:
        search_threshold(evaluate, self._scale, upward=upward, trials=self._trials, journal=self._journal)


def _threshold(measured: Measurement) -> float:
    assert measured.configuration.threshold is not None
    return measured.configuration.threshold
