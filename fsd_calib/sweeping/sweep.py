"""Settings of a grid, decoded on a task's problems one after the other: what each keeps, and what it gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.session import Session
from fsd_calib.certification.harm import retention_interval
from fsd_calib.certification.outcomes import Paired
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.measuring.speed import Interval
from fsd_calib.sweeping.estimates import proportion, ratio, ratio_of_ratios
from fsd_common.user_folders import default_cache, default_state
from fsd_decoding.profile.setting import Setting
from fsd_decoding.rules import rule_named

Part = Literal["tuning", "all"]
_FEW = 30  # problems


@dataclass(frozen=True)
class Grid:
    """What is swept: every score at every T and L.

    Args:
        rule: An acceptance rule with a threshold.
        part: Of each task's problems: those that calibrations tune on, or all.
    """

    rule: str
    scores: Sequence[str]
    thresholds: Sequence[float]
    draft_lengths: Sequence[int]
    part: Part = "tuning"

    def at(self, draft_length: int) -> Iterator[Setting]:
        """Yields the settings of a draft length: the lossless rule, then every score from strict to loose."""
        yield Setting(rule_named(self.rule).lossless, self.scores[0], draft_length)
        for score in self.scores:
            for threshold in sorted(self.thresholds):
                yield Setting(self.rule, score, draft_length, threshold)


class Row(NamedTuple):
    """What was measured of a setting on a task's problems.

    Attributes:
        setting: Without a draft it is the target alone, which has no rounds.
        retention: Accuracy in shares of the target's; None: the target solves nothing.
        tokens_per_round: Emitted tokens a verification of the target.
        gain: Tokens a round in shares of those of the lossless rule at the same L: how many times as fast as it this
            is, as a round takes as long.
        churn: The share of outcomes that differ from the target's.
    """

    task: str
    setting: Setting
    problems: int
    seeds: int
    accuracy: Interval
    retention: Interval | None = None
    churn: float | None = None
    tokens_per_round: Interval | None = None
    gain: Interval | None = None


def sweep(calibration: Calibration, grid: Grid, confidence: float = 0.95) -> list[Row]:
    """Decodes a task's problems under every setting of a grid, and returns a row for each, the target's first.

    What was decoded before is not decoded again. Problems that are decoded under a threshold are recorded, so that no
    calibration certifies on them.

    Args:
        calibration: Task, models, sampling, and how to decode; its goal does not matter.
        confidence: Of intervals, which are two-sided.

    Raises:
        UsageError: Bad input, or models that cannot be used together.
    """
    asked = calibration.config
    config = asked.changed(cache=asked.cache or default_cache(), state=asked.state or default_state())
    with calibration.opened(config) as (session, _, _), session.threads_for(session.batch_size):
        return list(_rows(session, grid, confidence))


def _rows(session: Session, grid: Grid, confidence: float) -> Iterator[Row]:
    problems = session.task.problems if grid.part == "all" else session.tuning.problems
    if len(problems) < _FEW:
        way = "give more problems"
        if grid.part == "tuning":
            way += ", or --part all, on which none can certify afterwards"
        session.progress.note(
            f"warning: task {session.task.name} is swept on {len(problems)} problems, so that intervals are wide; {way}"
        )
    evaluator = Evaluator(session.tuned.before(session.decode), problems, "tuning")
    name, settings = session.task.name, [setting for length in grid.draft_lengths for setting in grid.at(length)]
    with session.progress.step(f"sweeping {name}", len(settings) + 1) as advance:
        alone = evaluator.measure(Setting.alone(grid.scores[0]))
        advance(1)
        yield Row(name, alone.setting, alone.problems, alone.correct.shape[1], _accuracy(alone, confidence))
        lossless = alone
        for setting in settings:
            found = evaluator.measure(setting)
            advance(1)
            if setting.threshold is None:
                lossless = found
            yield _row(name, alone, lossless, found, confidence)


def _row(task: str, alone: Measurement, lossless: Measurement, found: Measurement, confidence: float) -> Row:
    paired = Paired.of(alone, found)
    kept = retention_interval(paired, confidence)
    counts, exact = _counts(found), _counts(lossless)
    return Row(
        task, found.setting, found.problems, found.correct.shape[1], _accuracy(found, confidence),
        None if kept is None else Interval(paired.retention, *kept),
        float((alone.correct != found.correct).mean()), ratio(*counts, confidence),
        ratio_of_ratios(*counts, *exact, confidence),
    )  # fmt: skip


def _accuracy(found: Measurement, confidence: float) -> Interval:
    paired = Paired.of(found, found)
    return proportion(paired.units[0], paired.unit_sizes, found.correct.size, confidence)


def _counts(found: Measurement) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and rounds, summed over each unit: a problem, or a group of problems that belong together."""
    paired = Paired.of(found, found)
    tokens, rounds = (
        np.array([sum(getattr(each, name) for each in seeds) for seeds in found.decodings], np.float64)
        for name in ("tokens", "rounds")
    )
    return paired.summed(tokens), paired.summed(rounds)
