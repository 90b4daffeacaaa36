"""Decoding at many thresholds, where each problem is decoded again only if its text may have changed.

Every result names the interval of thresholds that it holds for. Calibration keeps a margin from the ends of these
intervals; here there is none, so a text next to an end may differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fsd_calib.tasks.base import Problem
from fsd_decoding.engine.result import Result

Decode = Callable[[float, Sequence[Problem]], list[Result]]


class IntervalCache:
    """Results of some problems at any threshold.

    Args:
        decode: decodes problems at one threshold and returns their results in the same order.
        problems: those that results are kept for.
    """

    def __init__(self, decode: Decode, problems: Sequence[Problem]) -> None:
        self._decode, self._problems = decode, problems
        self._results: list[list[Result]] = [[] for _ in problems]

    def at(self, threshold: float) -> list[Result]:
        """Returns the results of all problems at a threshold."""
        stale = [i for i in range(len(self._results)) if self._valid(i, threshold) is None]
        if stale:
            decoded = self._decode(threshold, [self._problems[i] for i in stale])
            for i, result in zip(stale, decoded, strict=True):
                self._results[i].append(result)
        return [self._valid(i, threshold) or results[-1] for i, results in enumerate(self._results)]

    def _valid(self, problem: int, threshold: float) -> Result | None:
        valid = (r for r in self._results[problem] if r.interval[0] <= threshold < r.interval[1])
        return next(valid, None)
