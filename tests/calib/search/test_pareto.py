"""The front: dense where users choose, also where retention dips and recovers, and few of its points as even."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.progress import Silent
from fsd_calib.search.forecast import speed_at
from fsd_calib.search.history import History, Tried
from fsd_calib.search.pareto import CHOSEN, ParetoFront, Spot, chosen_from, contenders, few, nondominated
from fsd_calib.search.search import Searched, search
from fsd_calib.search.space import Point, Space
from support.simulated_worlds import HIGHEST, LOWEST, Formula, World

SPACE = Space(("fsd-coupled",), ("js", "doubt"), (2, 5, 8, 12))
SHARES = st.floats(0.3, 1.05)


@dataclass
class Dipped(World):
    """Where a stretch of thresholds, in logit(u), loses up to `depth` of the problems, and above it none of them."""

    low: float = 2.0
    high: float = 3.5
    depth: float = 0.12

    def correct(self, configuration: Configuration) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        right = super().correct(configuration)
        if configuration.threshold is None:
            return right
        off = abs(2 * self._place(configuration) - self.low - self.high) / (self.high - self.low)
        return right & (np.random.default_rng(self.seed + 1).random(self.count) >= self.depth * max(0.0, 1 - off))


def run(world: World, trials: int = 30, storage: str | None = None) -> Searched:
    return search(world.evaluator(), world.target(), Formula(), SPACE, ParetoFront(), storage, "s", trials, Silent())


def where_users_choose(searched: Searched) -> list[Tried]:
    return [t for t in nondominated(searched.tried) if t.retention >= CHOSEN]


@pytest.mark.parametrize("middle", [5.0, 7.0, 9.5])
@pytest.mark.parametrize("low", [2.0, 4.0])
def test_six_points_at_least_lie_where_users_choose_and_far_apart(low: float, middle: float) -> None:
    """The seeds are fixed, so there is no false alarm."""
    world = Dipped(count=600, seed=1, middle=middle, low=low, high=low + 1.5, shifts={"doubt": 0.5})
    searched = run(world)
    points = where_users_choose(searched)
    assert len(points) >= 6
    assert len(searched.tried) <= 30
    top = [Spot(t.retention, t.tokens_per_second) for t in points]
    assert max(a.retention - b.retention for a, b in pairwise(top)) <= 0.04
    assert top[-1].tokens_per_second >= 0.97 * fastest_there_is(world)


def fastest_there_is(world: World) -> float:
    """tokens/s of all that retains .9, to .05 in logit(u)."""
    arms = (Configuration("fsd-coupled", name, 12) for name in SPACE.divergences)
    places = [(arm, at) for arm in arms for at in np.arange(LOWEST, HIGHEST, 0.05)]
    return max(
        speed_at(Formula(), arm, at)
        for arm, at in places
        if world.retention(arm.at(Formula().threshold(arm, at))) >= CHOSEN
    )


def test_a_dip_where_the_search_begins_hides_neither_side() -> None:
    """Half of the problems are lost at the place that is tried first."""
    world = Dipped(count=600, seed=1, middle=9.5, low=2.1, high=4.1, depth=0.5)
    searched = run(world)
    assert searched.tried[0].retention < 0.6
    places = [world._place(t.configuration) for t in where_users_choose(searched)]
    assert len(places) >= 6
    assert min(places) < 2.4
    assert max(places) > 3.8


def test_every_family_that_is_fast_and_accurate_is_looked_at_closely() -> None:
    """One that is far worse everywhere takes the coarse trials, and no more than its gaps could promise."""
    tried = run(World(count=600, seed=2, middle=7.0, shifts={"doubt": 0.2})).tried
    each = [sum(t.configuration.divergence == name for t in tried) for name in SPACE.divergences]
    assert min(each) >= 6
    tried = run(World(count=600, seed=2, middle=7.0, shifts={"doubt": 3.0})).tried
    each = [sum(t.configuration.divergence == name for t in tried) for name in SPACE.divergences]
    assert each[0] < each[1]


@pytest.mark.parametrize("stop", [3, 9])
def test_a_stopped_search_goes_on_as_if_it_had_not_been(stop: int, tmp_path: Path) -> None:
    journal, whole = str(tmp_path / "study.log"), run(World(count=200, seed=3, middle=7.0))
    assert run(World(count=200, seed=3, middle=7.0), stop, journal).tried == whole.tried[:stop]
    assert run(World(count=200, seed=3, middle=7.0), 30, journal) == whole


def test_no_two_workers_try_the_same() -> None:
    """Nothing was finished yet: there is nothing to halve once the coarse places are taken."""
    running: list[Point] = []
    while (point := ParetoFront().propose(History((), tuple(running)), SPACE, Formula())) is not None:
        assert point not in running
        running.append(point)
    assert len(running) == 6


def test_what_a_single_problem_tells_apart_is_frozen_too() -> None:
    """And no two that are the same; what another beats by more, or in speed, is not."""
    known = [(0.99, 100.0), (0.98, 99.9), (0.95, 99.9), (0.99, 80.0), (0.99, 100.0), (0.9, 120.0)]
    tried = [
        Tried(Configuration("fsd-coupled", "js", 5, i / 10), i, kept, 0.0, pace, kept, 1 - kept, 0.0, 100, 1 - kept)
        for i, (kept, pace) in enumerate(known)
    ]
    assert [t.logit_share for t in contenders(tried)] == [1, 0, 5]


def spots(pairs: Sequence[tuple[float, float]]) -> list[Spot]:
    """As a front: slowest first, and ever less accurate."""
    kept = sorted({k for k, _ in pairs}, reverse=True)
    return [Spot(k, p) for k, p in zip(kept, sorted({p for _, p in pairs}), strict=False)]


@given(st.lists(st.tuples(SHARES, st.floats(40, 200)), max_size=20).map(spots), st.integers(2, 9))
def test_few_keeps_the_ends_of_what_users_choose_among_and_the_rest_where_there_is_room(
    front: list[Spot], most: int
) -> None:
    kept = few(front, most, CHOSEN)
    assert kept == sorted(set(kept))
    assert len(kept) == min(most, len(front))
    chosen = [i for i, spot in enumerate(front) if spot.retention >= CHOSEN]
    assert len([i for i in kept if i in chosen]) == min(most, len(chosen))
    assert not chosen or {chosen[0], chosen[-1]} <= set(kept)


def test_few_leaves_out_what_lies_close() -> None:
    front = [Spot(1.0, 100), Spot(0.999, 101), Spot(0.99, 140), Spot(0.96, 150), Spot(0.959, 150.5), Spot(0.92, 152)]
    assert few(front, 4, CHOSEN) == [0, 2, 4, 5]


def test_what_surely_retains_enough_stays_before_what_may_and_that_before_the_rest() -> None:
    front = [Spot(1.0, 100), Spot(0.99, 140), Spot(0.98, 141), Spot(0.92, 150), Spot(0.91, 170), Spot(0.5, 300)]
    assert [few(front, most, 0.95) for most in (5, 4, 3, 2)] == [[0, 1, 2, 3, 4], [0, 1, 2, 4], [0, 1, 2], [0, 2]]


def test_the_fewer_problems_the_more_must_be_kept_to_be_sure() -> None:
    assert [round(chosen_from(n), 3) for n in (1, 400, 10_000)] == [0.95, 0.93, 0.906]
