"""Problems decoded at many thresholds: one is decoded again only where its text may have changed (DESIGN section 9).

Knows intervals, and takes them as they are: without the margins that calibration keeps from their ends, a text there
may differ by rounding. Knows nothing of models, and of what a threshold bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fsd_calib.tasks.base import Problem
from fsd_decoding.engine.result import Result

Decode = Callable[[float, Sequence[Problem]], list[Result]]


class Texts:
    """Of these problems. decode: at one threshold, in their order."""

    def __init__(self, decode: Decode, problems: Sequence[Problem]) -> None:
        self._decode, self._problems = decode, problems
        self._known: list[list[Result]] = [[] for _ in problems]

    def at(self, threshold: float) -> list[Result]:
        stale = [i for i in range(len(self._known)) if self._valid(i, threshold) is None]
        if stale:
            found = self._decode(threshold, [self._problems[i] for i in stale])
            for i, result in zip(stale, found, strict=True):
                self._known[i].append(result)
        return [self._valid(i, threshold) or known[-1] for i, known in enumerate(self._known)]

    def _valid(self, problem: int, threshold: float) -> Result | None:
        within = (r for r in self._known[problem] if r.interval[0] <= threshold < r.interval[1])
        return next(within, None)
