"""The Pareto front: dense where users choose, also where retention dips and recovers, and thinned out evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.search.forecast import speed_at
from fsd_calib.search.objective import FinishedTrial, History
from fsd_calib.search.pareto import (
    SELECTABLE,
    FrontPoint,
    ParetoFront,
    nondominated,
    not_clearly_dominated,
    selectable_retention,
    thin_out,
)
from fsd_calib.search.space import Point, Space
from fsd_calib.search.trials import SearchResult, search
from fsd_common.progress.base import Silent
from fsd_decoding.profile.setting import Setting
from support.calibration.simulated_worlds import HIGHEST, LOWEST, Formula, World

SPACE = Space(("fsd-coupled",), ("js", "doubt"), (2, 5, 8, 12))
SHARES = st.floats(0.3, 1.05)


@dataclass
class Dipped(World):
    """A world in which a range of thresholds, in logit(u), loses up to `depth` of the problems, and none above it."""

    low: float = 2.0
    high: float = 3.5
    depth: float = 0.12

    def correct(self, setting: Setting) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        right = super().correct(setting)
        if setting.threshold is None:
            return right
        off = abs(2 * self._place(setting) - self.low - self.high) / (self.high - self.low)
        return right & (np.random.default_rng(self.seed + 1).random(self.count) >= self.depth * max(0.0, 1 - off))


def run(world: World, trials: int = 30, storage: str | None = None) -> SearchResult:
    return search(world.evaluator(), world.target(), Formula(), SPACE, ParetoFront(), storage, "s", trials, Silent())


def selectable(searched: SearchResult) -> list[FinishedTrial]:
    return [t for t in nondominated(searched.trials) if t.retention >= SELECTABLE]


@pytest.mark.thinned(every=6)
@pytest.mark.parametrize("middle", [5.0, 7.0, 9.5])
@pytest.mark.parametrize("low", [2.0, 4.0])
def test_the_selectable_front_has_six_points_spread_out(low: float, middle: float) -> None:
    """The seeds are fixed, so there is no false alarm."""
    world = Dipped(count=600, seed=1, middle=middle, low=low, high=low + 1.5, shifts={"doubt": 0.5})
    searched = run(world)
    points = selectable(searched)
    assert len(points) >= 6
    assert len(searched.trials) <= 30
    top = [FrontPoint(t.retention, t.tokens_per_second) for t in points]
    assert max(a.retention - b.retention for a, b in pairwise(top)) <= 0.04
    assert top[-1].tokens_per_second >= 0.97 * fastest_possible(world)


def fastest_possible(world: World) -> float:
    """Returns the largest tokens/s that retains .9, to .05 in logit(u)."""
    arms = (Setting("fsd-coupled", name, 12) for name in SPACE.scores)
    places = [(arm, at) for arm in arms for at in np.arange(LOWEST, HIGHEST, 0.05)]
    return max(
        speed_at(Formula(), arm, at)
        for arm, at in places
        if world.retention(arm.at(Formula().threshold(arm, at))) >= SELECTABLE
    )


@pytest.mark.slow
def test_a_dip_at_the_first_trial_hides_neither_side() -> None:
    """Half of the problems are lost at the point that is tried first."""
    world = Dipped(count=600, seed=1, middle=9.5, low=2.1, high=4.1, depth=0.5)
    searched = run(world)
    assert searched.trials[0].retention < 0.6
    places = [world._place(t.setting) for t in selectable(searched)]
    assert len(places) >= 6
    assert min(places) < 2.4
    assert max(places) > 3.8


@pytest.mark.slow
def test_every_good_family_is_searched_finely() -> None:
    """A family that is far worse everywhere gets the coarse trials, and few more."""
    trials = run(World(count=600, seed=2, middle=7.0, shifts={"doubt": 0.2})).trials
    each = [sum(t.setting.score == name for t in trials) for name in SPACE.scores]
    assert min(each) >= 6
    trials = run(World(count=600, seed=2, middle=7.0, shifts={"doubt": 3.0})).trials
    each = [sum(t.setting.score == name for t in trials) for name in SPACE.scores]
    assert each[0] < each[1]


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("stop", [3, 9])
def test_a_stopped_search_resumes_to_the_same_result(stop: int, tmp_path: Path) -> None:
    journal, whole = str(tmp_path / "study.log"), run(World(count=200, seed=3, middle=7.0))
    assert run(World(count=200, seed=3, middle=7.0), stop, journal).trials == whole.trials[:stop]
    assert run(World(count=200, seed=3, middle=7.0), 30, journal) == whole


def test_no_two_workers_evaluate_the_same_point() -> None:
    """With no finished trial there is no gap to halve once the coarse points are taken."""
    running: list[Point] = []
    while (point := ParetoFront().propose(History((), tuple(running)), SPACE, Formula())) is not None:
        assert point not in running
        running.append(point)
    assert len(running) == 6


def test_points_within_one_problem_of_the_front_are_frozen_too() -> None:
    """Duplicates, and points beaten by more or in speed, are not."""
    known = [(0.99, 100.0), (0.98, 99.9), (0.95, 99.9), (0.99, 80.0), (0.99, 100.0), (0.9, 120.0)]
    trials = [
        FinishedTrial(Setting("fsd-coupled", "js", 5, i / 10), i, kept, 0.0, pace, kept, 1 - kept, 0.0, 100, 1 - kept)
        for i, (kept, pace) in enumerate(known)
    ]
    assert [t.logit_share for t in not_clearly_dominated(trials)] == [1, 0, 5]


def front_of(pairs: Sequence[tuple[float, float]]) -> list[FrontPoint]:
    """Returns a front: slowest first, and ever less accurate."""
    kept = sorted({k for k, _ in pairs}, reverse=True)
    return [FrontPoint(k, p) for k, p in zip(kept, sorted({p for _, p in pairs}), strict=False)]


@given(st.lists(st.tuples(SHARES, st.floats(40, 200)), max_size=20).map(front_of), st.integers(2, 9))
def test_thinning_keeps_the_selectable_ends_and_the_rest_where_there_is_room(
    front: list[FrontPoint], most: int
) -> None:
    kept = thin_out(front, most, SELECTABLE)
    assert kept == sorted(set(kept))
    assert len(kept) == min(most, len(front))
    chosen = [i for i, point in enumerate(front) if point.retention >= SELECTABLE]
    assert len([i for i in kept if i in chosen]) == min(most, len(chosen))
    assert not chosen or {chosen[0], chosen[-1]} <= set(kept)


def test_thinning_removes_points_close_to_others() -> None:
    front = [
        FrontPoint(1.0, 100),
        FrontPoint(0.999, 101),
        FrontPoint(0.99, 140),
        FrontPoint(0.96, 150),
        FrontPoint(0.959, 150.5),
        FrontPoint(0.92, 152),
    ]
    assert thin_out(front, 4, SELECTABLE) == [0, 2, 4, 5]


def test_thinning_removes_the_lowest_retentions_first() -> None:
    front = [
        FrontPoint(1.0, 100),
        FrontPoint(0.99, 140),
        FrontPoint(0.98, 141),
        FrontPoint(0.92, 150),
        FrontPoint(0.91, 170),
        FrontPoint(0.5, 300),
    ]
    assert [thin_out(front, most, 0.95) for most in (5, 4, 3, 2)] == [[0, 1, 2, 3, 4], [0, 1, 2, 4], [0, 1, 2], [0, 2]]


def test_fewer_problems_require_a_larger_margin_of_retention() -> None:
    assert [round(selectable_retention(n), 3) for n in (1, 400, 10_000)] == [0.95, 0.93, 0.906]
