"""Decodes only as much of the tuning part as a decision takes. Knows portions, and asks the goal when to stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fsd_calib.measuring.bench import Bench
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.progress import Advance
from fsd_calib.searching.forecast import Forecast
from fsd_calib.searching.goal import Evidence, Goal, Judged

_FIRST = 128  # problems; fewer settle nothing


class Raced(NamedTuple):
    """A judgement, and the partial estimates it rests on."""

    judged: Judged
    seen: Evidence


def race(
    bench: Bench,
    configuration: Configuration,
    target: Measurement,
    goal: Goal,
    forecast: Forecast,
    advance: Advance,
) -> Raced:
    """On portions, each twice the last, until the goal finds the matter settled or none is left."""
    whole, before = len(bench.problems), 0
    for problems in _portions(whole):
        fuzzy = bench.measure(configuration, problems)
        advance(problems - before)
        before = problems
        seen = Evidence(fuzzy, target.first(problems), whole)
        judged = goal.judge(seen, forecast)
        if judged.settled:
            break
    return Raced(judged, seen)


def _portions(whole: int) -> Iterator[int]:
    problems = _FIRST
    while problems < whole:
        yield problems
        problems *= 2
    yield whole
