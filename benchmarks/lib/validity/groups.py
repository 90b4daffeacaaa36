"""Problems in groups that flip together, declared as groups and not: `Paired.groups`, and which side a group is on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsd_calib.certification import grouped
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import cells
from fsd_collectors.split import tuning_and_certification
from lib.validity.replayed import KINDS, Step, any_passes, levels_of, problems_of, share_false
from lib.validity.shares import Share, line, own_level, summarise
from lib.validity.sizes import Counts
from lib.validity.worlds import WANTED, p_of

ACCURACY = 0.8
_SETTINGS = 12  # of which the best on the tuning part is certified
_DECLARED, _ALONE = "declared", "taken as independent"


@dataclass(frozen=True)
class Grouped:
    """A population of groups whose problems agree in whether they are lost, and in whether they are gained.

    Attributes:
        alike: Intra-class correlation of either.
    """

    problems: int
    each: int
    alike: float
    churn: float

    def draw(self, runs: int, rng: np.random.Generator) -> Counts:
        """Draws kinds of outcomes, (runs, problems), by beta-binomial counts of each group, groups side by side."""
        law, shape = cells(ACCURACY, self.churn, WANTED), (1 - self.alike) / self.alike
        groups = (runs, self.problems // self.each)
        lost, gained = (
            rng.random((runs, self.problems)) < rng.beta(p * shape, (1 - p) * shape, groups).repeat(self.each, 1)
            for p in (law.lost, law.gained / (1 - law.lost))
        )
        right = rng.random((runs, self.problems)) < law.both_right / (law.both_right + law.both_wrong)
        return np.where(lost, 1, np.where(gained, 2, np.where(right, 0, 3)))


def counted(kinds: Counts) -> Counts:
    """Returns counts of kinds along the last axis."""
    return np.stack([(kinds == kind).sum(-1) for kind in range(KINDS)], -1)


def first_attempts(of: Grouped, runs: int, rng: np.random.Generator) -> Iterator[Share]:
    """Yields how often a first attempt passes."""
    what, kinds = line(of.problems, of.each, of.alike, of.churn, "one setting"), of.draw(runs, rng)
    yield from _passing(what, kinds, kinds, Step(problems_of(range(of.problems), each=of.each)))


def best_of_many(of: Grouped, runs: int, rng: np.random.Generator) -> Iterator[Share]:
    """Yields how often the best of 12 settings on the tuning part passes, where groups are on one side, or on both."""
    sides = [tuning_and_certification(problems_of(range(of.problems), each=each)) for each in (of.each, 1)]
    place = {problem.id: at for at, problem in enumerate(problems_of(range(of.problems)))}
    places = [[np.array([place[problem.id] for problem in part]) for part in side] for side in sides]
    chosen = [np.empty((runs, len(certification)), np.int64) for _, certification in places]
    for run in range(runs):
        kinds = of.draw(_SETTINGS, rng)
        for (tuning, certification), found in zip(places, chosen, strict=True):
            both, lost, gained, _ = counted(kinds[:, tuning]).T
            best = int(((both + gained) / np.maximum(both + lost, 1)).argmax())
            found[run] = kinds[best, certification]
    what = line(of.problems, of.each, of.alike, of.churn, f"best of {_SETTINGS} on a tuning part")
    yield from _passing(what, chosen[0], chosen[1], Step(sides[0][1]))


def _passing(what: str, kinds: Counts, mixed: Counts, step: Step) -> Iterator[Share]:
    """Yields both shares. mixed: outcomes where no groups were declared."""
    groups = np.unique([problem.group for problem in step.problems], return_inverse=True)[1]
    gains = np.flatnonzero(np.isin(kinds, (0, 2)).sum(1) > WANTED * np.isin(kinds, (0, 1)).sum(1))
    p = np.ones((len(kinds), 1))  # .5 and more where what is wanted was not reached
    for run in gains:
        paired = Paired(np.isin(kinds[run], (0, 1))[:, None], np.isin(kinds[run], (0, 2))[:, None], groups)
        p[run] = grouped.p_value(paired, WANTED)
    false = share_false(p, levels_of([step]), lambda run: any_passes([(step, kinds[run])]))
    yield Share(what, _DECLARED, false)
    yield Share(what, _ALONE, float((p_of(counted(mixed)) <= own_level(1)).mean()))


def groups(
    populations: Sequence[Grouped], tuned: Sequence[Grouped], runs: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Simulates first attempts, and the best of many settings."""
    shares = [share for of in populations for share in first_attempts(of, runs, rng)]
    shares += [share for of in tuned for share in best_of_many(of, runs, rng)]
    columns = "problems | each group's | intra-class correlation | churn | what, then the share of false certificates"
    return summarise(shares, columns, own_level(1), runs, (_ALONE,))
