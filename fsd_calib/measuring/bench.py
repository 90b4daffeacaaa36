"""One part of a task's problems, decoded on demand: what was measured once is not measured again.

Knows which problems of the part a configuration was decoded on. How they are decoded is a function it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement, Seeds
from fsd_calib.tasks import Problem
from fsd_collectors.parts import Part

Decode = Callable[[Configuration, Sequence[Problem]], Sequence[Seeds]]
"""Decodings of problems, in their order, graded."""


class Bench:
    """The problems of one part, in one order."""

    def __init__(self, decode: Decode, problems: Sequence[Problem], part: Part) -> None:
        self.decode, self.problems, self.part = decode, tuple(problems), part
        self._done: dict[Configuration, list[Seeds]] = {}

    def measure(self, configuration: Configuration, first: int | None = None) -> Measurement:
        """Of the first so many problems, or all; only those that were not measured before are decoded."""
        done = self._done.setdefault(configuration, [])
        wanted = len(self.problems) if first is None else min(first, len(self.problems))
        if len(done) < wanted:
            done += self.decode(configuration, self.problems[len(done) : wanted])
        return Measurement(configuration, self.part, tuple(done[:wanted]))

    def counted(self, configuration: Configuration) -> Measurement:
        """On as many problems as it was measured on so far."""
        return Measurement(configuration, self.part, tuple(self._done[configuration]))

    def measured(self) -> list[Measurement]:
        """All that was measured so far, each on as many problems as it was."""
        return [self.counted(c) for c, done in self._done.items() if done]
