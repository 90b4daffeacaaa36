"""Synthetic pools of decodings, of shapes that the real pool does not have, and their forecasts.

A surface says what share of problems each score loses and gains at each logit(u). The texts of a pool are drawn
accordingly: like real ones, they hold for an interval of T, and a problem that flips mostly stays flipped for a while.
Speed is a formula of the acceptance rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsd_calib.search.space import logit
from lib.pool import Arm, Columns, Pool, PooledForecast

PROBLEMS, LENGTHS, RULE = 4_000, (3, 5, 8, 12), "fsd-coupled"
LOWEST, HIGHEST = logit(0.1), 5.5  # logit(u), of forecast and pool
_UNMOVED = 1.5  # logit(u) up to which T accepts only what the lossless rule accepts too, as with the real pair
_MOST = {"js": 0.4, "doubt": 2.5}  # T at the highest logit(u)
_TOKENS = 65  # of every text
_COSTS = {"draft_step": 5e-4, "verify": 3.7e-3, "position": 1e-4}  # about the real pair's

_BREAKS = 2.0  # texts that end, per unit of logit(u): about nine texts a problem
_KEPT = 0.6  # probability that the next text has the same luck as the one before
_SHARED = 0.5  # probability that two draft lengths have the same luck with a problem

_GRID = np.linspace(LOWEST, HIGHEST, 64)
_EDGES = np.linspace(0.0, HIGHEST, 276)  # cells of logit(u), in which nothing changes
_MIDDLES = (_EDGES[1:] + _EDGES[:-1]) / 2

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Curve:
    """Retention and gains under one score, which do not depend on the draft length.

    Args:
        points: (logit(u), retention, share of all problems gained); linear between them, constant beyond.
        ahead: how much smaller logit(u) is than under another score at the same speed.
    """

    points: Sequence[tuple[float, float, float]]
    ahead: float = 0.0

    def at(self, x: Floats) -> tuple[Floats, Floats]:
        """Returns retention and the share gained, at each logit(u)."""
        places, retention, gained = np.array(self.points).T
        return np.interp(x, places, retention), np.interp(x, places, gained)


@dataclass(frozen=True)
class Surface:
    """The curves of all scores. accuracy: share of problems that the target solves."""

    accuracy: float
    curves: Mapping[str, Curve]

    def retention(self, score: str, x: Floats) -> Floats:
        return self.curves[score].at(x)[0]

    def flips(self, score: str, x: Floats) -> tuple[Floats, Floats]:
        """Returns the shares of all problems that are lost and gained, at each logit(u)."""
        retention, gained = self.curves[score].at(x)
        return gained + self.accuracy * (1 - retention), gained

    def tokens_a_round(self, score: str, length: int, x: Floats) -> Floats:
        """Returns mean tokens per round where drafted tokens are accepted independently with equal probability."""
        accepted = 1 / (1 + np.exp(-np.maximum(x + self.curves[score].ahead, _UNMOVED)))
        return (1 - accepted ** (length + 1)) / (1 - accepted)


_EVEN = Curve([(1.5, 1.0, 0.0), (2.0, 1.0, 0.01), (3.5, 0.99, 0.015), (4.5, 0.97, 0.015), (5.5, 0.85, 0.015)])

SURFACES: Mapping[str, Surface] = {
    # Like the real pool: the slower arm loses, recovers, and falls off a cliff.
    "dip": Surface(0.95, {
        "js": Curve([
            (1.5, 1.0, 0.0), (2.0, 1.0, 0.006), (3.0, 0.985, 0.012), (3.5, 1.0, 0.012), (4.3, 1.0, 0.012),
            (4.6, 0.8, 0.012),
        ]),
        "doubt": Curve([(1.5, 1.0, 0.0), (2.0, 1.0, 0.008), (4.5, 0.98, 0.012), (4.8, 0.8, 0.012)], 0.3),
    }),
    "cliff": Surface(0.8, {
        "js": Curve([(1.5, 1.0, 0.0), (2.0, 1.0, 0.01), (2.8, 1.0, 0.01), (3.1, 0.7, 0.01)]),
        "doubt": Curve([(1.5, 1.0, 0.0), (2.0, 1.0, 0.01), (2.8, 1.0, 0.01), (3.1, 0.7, 0.01)], 0.3),
    }),
    "nothing safe": Surface(0.8, {
        "js": Curve([(0.5, 1.0, 0.0), (1.0, 0.95, 0.01), (4.5, 0.9, 0.01)]),
        "doubt": Curve([(0.5, 1.0, 0.0), (1.0, 0.94, 0.01), (4.5, 0.92, 0.01)], 0.3),
    }),
    "accuracy .3": Surface(0.3, {
        "js": Curve([(1.5, 1.0, 0.0), (2.0, 1.0, 0.02), (3.5, 0.98, 0.03), (5.5, 0.94, 0.03)]),
        "doubt": Curve([(1.5, 1.0, 0.0), (2.0, 1.0, 0.02), (3.5, 0.98, 0.03), (5.5, 0.92, 0.03)], 0.3),
    }),
    "churn .1": Surface(0.7, {
        "js": Curve([(1.5, 1.0, 0.0), (2.0, 1.0, 0.05), (4.0, 1.0, 0.05), (5.0, 0.9, 0.05)]),
        "doubt": Curve([(1.5, 1.0, 0.0), (2.0, 1.0, 0.05), (4.0, 1.0, 0.05), (5.0, 0.9, 0.05)], 0.3),
    }),
    "two equal arms": Surface(0.8, {"js": _EVEN, "doubt": _EVEN}),
}  # fmt: skip


class Luck(NamedTuple):
    """Random numbers of every problem in every cell of logit(u).

    Levels are uniform over (0, 1) in each cell: where a surface loses a share of problems, those with a level below it
    are lost.
    """

    begins: Bools  # whether a text begins; (problems, cells)
    level: Floats  # (problems, cells)


def draw_luck(problems: int, random: np.random.Generator) -> Luck:
    """Draws luck. Texts end by a Poisson process, from the logit(u) on where T has any effect."""
    shape = (problems, len(_MIDDLES))
    begins = (random.random(shape) < _BREAKS * np.diff(_EDGES)) & (_MIDDLES > _UNMOVED)
    anew = begins & (random.random(shape) >= _KEPT)
    since = np.maximum.accumulate(np.where(anew, np.arange(shape[1]), 0), axis=1)
    return Luck(begins, np.take_along_axis(random.random(shape), since, axis=1))


def mix(one: Luck, other: Luck, share: float, random: np.random.Generator) -> Luck:
    """Mixes both: the first one's luck for a share of the problems, and the second one's for the others."""
    ones = random.random((len(one.level), 1)) < share
    return Luck(np.where(ones, one.begins, other.begins), np.where(ones, one.level, other.level))


def draw_pool(surface: Surface, seed: int = 0, problems: int = PROBLEMS, lengths: Sequence[int] = LENGTHS) -> Pool:
    """Draws a pool whose problems are lost and gained at random, with the surface's probability in each cell.

    The pool's own retention, as `Pool.whole` returns it, differs from the surface's by sampling error.
    """
    random = np.random.default_rng(seed)
    right = random.permutation(problems) < round(surface.accuracy * problems)
    arms: dict[tuple[str, int], Arm] = {}
    for score in surface.curves:
        common = draw_luck(problems, random)
        for length in lengths:
            # Two lengths have the same luck where both take it from the common one.
            luck = mix(common, draw_luck(problems, random), _SHARED**0.5, random)
            texts = _texts(surface, score, length, right, luck, random)
            arms[score, length] = Arm(f"{score}-{length}", texts, _MOST[score])
    about = {"seed": seed, "costs": _COSTS, "thresholds_below": _MOST}
    return Pool(about, arms, {"correct": right, "tokens": np.full(problems, _TOKENS, np.uint8)})


def forecast(pool: Pool) -> PooledForecast:
    """Returns a forecast with the pool's true speeds, like a replay of the whole pool."""
    scales = {score: _thresholds(score, _GRID) for score, _ in pool.arms}
    arms = [_sweep(pool, score, length, scales[score]) for score, length in pool.arms]
    return PooledForecast(pool, {"tokens": _TOKENS, "logit_shares": _GRID, "thresholds": scales, "arms": arms})


def _sweep(pool: Pool, score: str, length: int, scale: Floats) -> dict[str, Any]:
    arm = pool.arms[score, length]
    means = [arm.rounds[arm.rows(arm.known.astype(np.intp), float(threshold))].mean() for threshold in scale]
    rounds = np.minimum.accumulate(means)  # rounding of texts may make them increase a little
    return {
        "score": score, "draft_length": length, "threshold": scale,
        "rounds": rounds, "drafted": length * rounds,
    }  # fmt: skip


def _thresholds(score: str, x: Floats) -> Floats:
    """Returns T at each logit(u), linear between the points of the grid like a forecast's."""
    return np.interp(x, _GRID, _MOST[score] * np.exp(_GRID - HIGHEST))


def _texts(surface: Surface, score: str, length: int, right: Bools, luck: Luck, random: np.random.Generator) -> Columns:
    """Returns the texts of an arm.

    A text ends where its luck does, or where the surface crosses its level. Were it judged once, at its middle, a cliff
    would be as wide as texts are.
    """
    lost, gained = surface.flips(score, _MIDDLES)
    probabilities = np.where(right[:, None], lost / surface.accuracy, gained / (1 - surface.accuracy))
    flipped = luck.level < probabilities
    begins = luck.begins | np.diff(flipped, axis=1, prepend=False)
    begins[:, 0] = True
    problem, first = np.nonzero(begins)
    end = np.where(np.diff(problem, append=-1) == 0, np.roll(first, -1), len(_MIDDLES))
    middles = np.where(first == 0, 0.0, (_EDGES[first] + _EDGES[end]) / 2)  # the first is the lossless text
    rounds = _rounded(_TOKENS / surface.tokens_a_round(score, length, middles), random)
    drafted = length * rounds
    return {
        "problem": problem.astype(np.int16),
        "hi": np.where(end < len(_MIDDLES), _thresholds(score, _EDGES[end]), np.inf),
        "correct": right[problem] ^ flipped[problem, first],
        "tokens": np.full(len(problem), _TOKENS, np.uint8),
        "rounds": rounds.astype(np.uint8),
        "drafted": drafted.astype(np.uint16),
        "accepted": np.minimum(_TOKENS - rounds, drafted).astype(np.uint8),
    }


def _rounded(expected: Floats, random: np.random.Generator) -> NDArray[np.intp]:
    """Rounds up or down at random, which keeps means."""
    return np.floor(expected + random.random(expected.shape)).astype(np.intp)
