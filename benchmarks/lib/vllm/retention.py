"""Retention on problems that no calibration has seen, compared with what the profile found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fsd_calib.certification.score_test import lower_bound
from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.registry import load_task
from fsd_decoding.profile.parts import OutcomeCounts
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from lib.engines.processes import Served
from lib.engines.vllm import LARGEST_BATCH
from lib.engines.work import Work

_OUTSIDE = 0.05
_QUANTILE = 1.959964  # of the standard normal distribution, two-sided 95 %
_PIECES = 8
_SPARE = 400  # problems generated beyond those needed, since some were in the calibration


class Fresh:
    """Problems that no calibration of a profile has seen, and none twice."""

    def __init__(self, profile: ThresholdProfile) -> None:
        self._seen = {problem.id for problem in load_task(profile.task, profile.seed).problems}

    def task(self, seed: int, count: int) -> tuple[Task, Sequence[Problem]]:
        task = load_task("arithmetic", seed=seed, limit=count + _SPARE)
        new = {p.id: p for p in task.problems if p.id not in self._seen}
        problems = list(new.values())[:count]
        self._seen |= {problem.id for problem in problems}
        return task, problems


@dataclass(frozen=True)
class Retention:
    """Right answers under FSD over right answers of the target alone, on fresh problems and in the profile."""

    outcomes: OutcomeCounts
    retention: float
    lower_bound: float  # one-sided 95 %
    interval: tuple[float, float]  # two-sided 95 %, by the delta method
    wanted: float | None  # by the profile, as it certified it
    in_profile: float
    in_profile_lower_bound: float | None
    difference: float  # fresh less the profile's
    difference_errors: float  # its size in standard errors

    @classmethod
    def of(cls, outcomes: OutcomeCounts, profile: ThresholdProfile) -> Retention:
        found = profile.certificate
        certified = found.counts
        error = standard_error(outcomes)
        difference = outcomes.retention - certified.retention
        interval = (outcomes.retention - _QUANTILE * error, outcomes.retention + _QUANTILE * error)
        of_both = math.hypot(error, standard_error(certified))
        return cls(
            outcomes, outcomes.retention, lower_bound(outcomes, _OUTSIDE), interval, found.wanted, certified.retention,
            found.lower_bound, difference, abs(difference) / of_both if of_both else 0.0,
        )  # fmt: skip


def standard_error(outcomes: OutcomeCounts) -> float:
    """Of a ratio of paired counts, by the delta method: its logarithm varies by the answers that flip."""
    o = outcomes
    return o.retention * math.sqrt((o.lost + o.gained) / (o.right * o.solved))


def measure_retention(
    task: Task, problems: Sequence[Problem], target: Served, fuzzy: Served, profile: ThresholdProfile
) -> Retention:
    """Decodes the problems by both engines and compares their grades."""
    grades: dict[str, list[bool]] = {"target": [], "fsd": []}
    size = -(-len(problems) // _PIECES)
    for begin in range(0, len(problems), size):
        piece = problems[begin : begin + size]
        for name, engine in (("target", target), ("fsd", fuzzy)):
            texts = engine.decode(Work.of(task, piece, LARGEST_BATCH)).texts
            grades[name] += [task.grade(problem, text) for problem, text in zip(piece, texts, strict=True)]
        print(f"fresh problems: {begin + len(piece)} of {len(problems)}", flush=True)
    return Retention.of(OutcomeCounts.of(grades["target"], grades["fsd"]), profile)
