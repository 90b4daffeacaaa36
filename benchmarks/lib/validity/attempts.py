"""How often whole attempts are false: first ones, and any of several on one certification part.

In a first attempt candidates are frozen on a tuning part and tested in sequence on another. Each later attempt has
another draft or other settings. Retention by threshold is simulated, in many calibrations at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import norm

from fsd_calib.certification.score_test import p_values
from lib.validity.sizes import CONFIDENCE, LEVELS, Counts, Floats, Law, allowed, line, own_level

Bools = NDArray[np.bool_]

WANTED = 0.98
THRESHOLDS = (np.arange(20) + 1) / 20  # as shares of drafted tokens accepted: the looser, the faster
_CHANCES = (0.95, 0.8, 0.5, 0.2)  # probabilities of passing, for which thresholds are frozen
ATTEMPTS = 5
_ALIKE = (0.0, 0.5)  # shares of the problems with the same outcomes under all drafts
_FROZEN = 3  # settings of an attempt
_NOTCHES = 3  # steps of the threshold between two of them
_FIRST = 5  # index of the safest threshold of the first attempt
_EASY = 0.9  # a required retention that is far below the true one
_NEARLY = 0.2  # a p-value after which the same draft is tried again
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)  # shares of the problems with the same outcomes as under the first draft

Shape = Callable[[Law], Law]
SHAPES: dict[str, Shape] = {  # retention by threshold
    "flat": lambda u: np.full_like(u, WANTED),  # every certificate is false
    "linear": lambda u: 1 - 0.05 * u,
    "cliff": lambda u: np.where(u < 0.5, 1.0, 0.97),
    "s": lambda u: 1 - 0.06 / (1 + np.exp(-12 * (u - 0.5))),
    "bump": lambda u: 0.99 - 0.03 * np.sin(2 * np.pi * u) ** 2,  # falls below, recovers, falls again
    "leak": lambda u: 1 - 0.022 * u,  # is too low only at the very end
    "edge": lambda u: np.where(u < 0.5, 1.0, WANTED),  # just too low in the looser half
    "kept": np.ones_like,  # no certificate is false
}


@dataclass(frozen=True)
class World:
    """A population of problems whose outcomes depend on the threshold.

    Args:
        shape: of retention by threshold, a key of `SHAPES`.
        problems: in the tuning part, and in the certification part.
        churn: share of problems that flip at the loosest threshold, half lost and half gained, in addition to the
            losses that its retention implies.
        accuracy: of the target.
    """

    shape: str
    problems: int
    churn: float
    accuracy: float = 0.8

    @property
    def retentions(self) -> Law:
        return SHAPES[self.shape](THRESHOLDS)

    def draw(self, number: int, rng: np.random.Generator) -> Counts:
        """Draws paired counts (number, thresholds, 4).

        A problem that one threshold loses is lost by all thresholds with more losses: the outcomes of one part are
        dependent, as real ones are.
        """
        flips = self.churn / 2 * np.minimum(2 * THRESHOLDS, 1)
        lost, lost_rank = np.unique((1 - self.retentions) * self.accuracy + flips, return_inverse=True)
        gained, gained_rank = np.unique(flips, return_inverse=True)
        cells = [*np.diff(lost, prepend=0), *np.diff(gained, prepend=0), self.accuracy - lost[-1]]
        drawn = rng.multinomial(self.problems, [*cells, 1 - sum(cells)], size=number)
        all_lost, all_gained = drawn[:, : len(lost)], drawn[:, len(lost) : -2]
        right = all_lost.sum(1, keepdims=True) + drawn[:, [-2]]
        lost_by, gained_by = all_lost.cumsum(1)[:, lost_rank], all_gained.cumsum(1)[:, gained_rank]
        return np.stack([right - lost_by, lost_by, gained_by, self.problems - right - gained_by], axis=-1)

    def false(self, passed: NDArray[np.bool_], order: Counts) -> NDArray[np.bool_]:
        """Returns for each calibration whether any threshold passed whose retention is too low, (number,)."""
        return np.asarray((passed & (self.retentions[order] <= WANTED + 1e-12)).any(1))


def freeze(tuning: Counts, delta: float) -> Counts:
    """Returns the indices of frozen thresholds (number, 4), safest first.

    For each of four probabilities of passing it is the loosest threshold that has it, if the tuning part shows the
    truth. This stands in for `fsd_calib`'s own freezing, which computes the probability exactly.
    """
    both, lost, gained, _ = np.moveaxis(tuning, -1, 0)
    n = tuning.sum(-1)
    mean = (both + gained - WANTED * (both + lost)) / n
    square = (both * (1 - WANTED) ** 2 + lost * WANTED**2 + gained + 0.5) / n
    chance = norm.cdf(mean / np.sqrt(square / n) - norm.isf(delta))
    loosest = [len(THRESHOLDS) - 1 - (chance >= c)[:, ::-1].argmax(1) for c in _CHANCES]
    able = [(chance >= c).any(1) for c in _CHANCES]
    return np.sort(np.where(able, loosest, 0), 0).T


def p_of(counts: Counts) -> Law:
    """Returns the p-values of counts (..., 4), of the hypothesis that retention is below what is wanted."""
    both, lost, gained, wrong = np.moveaxis(counts, -1, 0)
    return p_values(both, lost, gained, wrong, WANTED)


def in_sequence(p: Law, delta: float | Law) -> NDArray[np.bool_]:
    """Returns which candidates pass the fixed-sequence test, (number, frozen), in many calibrations at once."""
    return np.asarray((p <= delta).cumprod(1), np.bool_)


class Share(NamedTuple):
    """How often a certificate is false."""

    what: str  # was simulated
    way: str  # the procedure
    false: float


def summarise(shares: Sequence[Share], columns: str, level: float, runs: int) -> dict[str, Any]:
    """Returns all rows, those above the level, and the largest share of each procedure."""
    most, ways = allowed(level, runs), dict.fromkeys(share.way for share in shares)
    rows = {line(share.what, share.way, share.false): share.false for share in shares}
    return {
        "runs": runs,
        "allowed": most,
        "columns": columns,
        "largest": {way: max(share.false for share in shares if share.way == way) for way in ways},
        "above": [row for row, false in rows.items() if false > most],
        "rows": list(rows),
    }


# --- first attempts ---------------------------------------------------------------------------------------


def sequences(problems: Sequence[int], churns: Sequence[float], runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """Simulates first attempts for each shape of retention by threshold.

    The outcomes of the frozen thresholds are nested, as those of one draft are, or independent of each other, as those
    of several drafts may be.
    """
    shares = list[Share]()
    for shape, number, churn in product(SHAPES, problems, churns):
        world = World(shape, number, churn)
        order = freeze(world.draw(runs, rng), LEVELS[0])
        for way, draws in (("nested", 1), ("independent", order.shape[1])):
            counts = [world.draw(runs, rng) for _ in range(draws)]
            false = world.false(in_sequence(_tested(counts, order), LEVELS[0]), order)
            shares.append(Share(line(shape, number, churn), way, float(false.mean())))
    columns = "shape | problems | churn | outcomes, then the share with a false certificate"
    return summarise(shares, columns, LEVELS[0], runs)


def _tested(counts: Sequence[Counts], order: Counts) -> Floats:
    """Returns p-values (runs, frozen): the i-th candidate's from the i-th counts, or all from the same."""
    places = range(order.shape[1])
    chosen = [np.take_along_axis(counts[i % len(counts)], order[:, [i], None], 1)[:, 0] for i in places]
    return p_of(np.stack(chosen, 1))


# --- several attempts -------------------------------------------------------------------------------------


class Drafts(NamedTuple):
    """p-values of all thresholds of five drafts on one part, and which thresholds have too low a retention."""

    p: Floats  # (runs, drafts, thresholds)
    false: Bools  # (drafts, thresholds)


def draw_drafts(
    shapes: Sequence[str], problems: int, churn: float, alike: float, runs: int, rng: np.random.Generator
) -> Drafts:
    """Draws outcomes; a share `alike` of the problems has the same ones under all drafts of a shape."""
    common = round(alike * problems)
    shared = {shape: World(shape, common, churn).draw(runs, rng) for shape in set(shapes)}
    p = [p_of(shared[shape] + World(shape, problems - common, churn).draw(runs, rng)) for shape in shapes]
    false = [World(shape, problems, churn).retentions <= WANTED + 1e-12 for shape in shapes]
    return Drafts(np.stack(p, 1), np.array(false))


class Levels:
    """The significance levels of consecutive attempts, for each run.

    Args:
        own: level of an attempt by its number.
        hands_on: says for each run, from which settings passed, whether an attempt's level goes to the next one.
    """

    def __init__(
        self, runs: int, own: Callable[[int], float], hands_on: Callable[[Bools], Bools] | None = None
    ) -> None:
        self._own, self._hands_on, self._number = own, hands_on, 0
        self._inherited = np.zeros(runs)

    def test(self, p: Floats) -> Bools:
        """Tests the next attempt's settings in sequence; returns which pass, (runs, frozen)."""
        self._number += 1
        level = self._own(self._number) + self._inherited
        passed = in_sequence(p, level[:, None])
        if self._hands_on is not None:
            self._inherited = np.where(self._hands_on(passed), level, 0.0)
        return passed


def _every(passed: Bools) -> Bools:
    return np.asarray(passed.all(1))


def _any(passed: Bools) -> Bools:
    return np.asarray(passed.any(1))


RULES: dict[str, Callable[[int], Levels]] = {  # how attempts get their levels, by the number of runs
    # As if each draft had a certification part of its own.
    "each the first": partial(Levels, own=lambda _: own_level(1)),
    "counted": partial(Levels, own=own_level),
    "counted, all passed hands on": partial(Levels, own=own_level, hands_on=_every),
    "counted, any pass hands on (wrong)": partial(Levels, own=own_level, hands_on=_any),
}
Rule = Callable[[int], Levels]


def _ladder(first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the thresholds of an attempt, safest first, (runs, frozen)."""
    return first[:, None] + _NOTCHES * np.arange(_FROZEN)


def in_turn(drafts: Drafts, rule: Rule) -> float:
    """Tries each draft, whatever the others showed; returns the share of runs with a false certificate."""
    runs = len(drafts.p)
    levels, ladder = rule(runs), _ladder(np.array([_FIRST]))[0]
    wrong = np.zeros(runs, bool)
    for draft in range(ATTEMPTS):
        wrong |= (levels.test(drafts.p[:, draft, ladder]) & drafts.false[draft, ladder]).any(1)
    return float(wrong.mean())


def until_one_passes(drafts: Drafts, rule: Rule) -> float:
    """Tries the next draft where no setting of the last one passed."""
    runs = len(drafts.p)
    levels, ladder = rule(runs), _ladder(np.array([_FIRST]))[0]
    wrong, going = np.zeros(runs, bool), np.ones(runs, bool)
    for draft in range(ATTEMPTS):
        passed = levels.test(drafts.p[:, draft, ladder]) & going[:, None]
        wrong |= (passed & drafts.false[draft, ladder]).any(1)
        going &= ~passed.any(1)
    return float(wrong.mean())


def by_outcomes(drafts: Drafts, rule: Rule) -> float:
    """Tries looser settings of a draft that passed, stricter ones after a near miss, and else the next draft."""
    runs = len(drafts.p)
    levels, every = rule(runs), np.arange(runs)[:, None]
    wrong, draft, first = np.zeros(runs, bool), np.zeros(runs, np.int64), np.full(runs, _FIRST)
    for _ in range(ATTEMPTS):
        ladder = _ladder(first)
        p = drafts.p[every, draft[:, None], ladder]
        passed = levels.test(p)
        wrong |= (passed & drafts.false[draft[:, None], ladder]).any(1)
        some, near = passed.any(1), p[:, 0] <= _NEARLY
        first = np.where(some, first + 2, np.where(near, first - 1, _FIRST))
        first = first.clip(0, drafts.p.shape[2] - 1 - _NOTCHES * 2)
        draft = np.where(some | near, draft, np.minimum(draft + 1, ATTEMPTS - 1))
    return float(wrong.mean())


def one_sequence(drafts: Drafts) -> float:
    """Tests all drafts as arms of one fixed sequence: the safest setting of each, then the second of each."""
    ladder = _ladder(np.array([_FIRST]))[0]
    p = drafts.p[:, :, ladder].transpose(0, 2, 1).reshape(len(drafts.p), -1)
    passed = in_sequence(p, own_level(1))
    return float((passed & drafts.false[:, ladder].T.ravel()).any(1).mean())


def chosen_against(problems: int, churn: float, runs: int, rng: np.random.Generator) -> float:
    """Chooses each next draft against the test, by the first draft's outcome on each problem.

    Drafts may share the first one's outcomes on any of `_SHARES` of the problems, and the one most likely to pass is
    tried. The retention of all is only just too low.
    """

    def outcomes(number: int) -> Counts:
        return World("flat", number, churn).draw(runs, rng)[:, -1]

    ends = [round(share * problems) for share in _SHARES]
    parts = [outcomes(end - start) for start, end in zip(ends, [*ends[1:], problems], strict=True)]
    shared = np.cumsum([np.zeros_like(parts[0]), *parts], 0)  # by how many shares: (6, runs, 4)
    scores = np.stack([-ndtri(p_of(part).clip(1e-9, 0.5)) for part in shared[:-1]])
    wrong = p_of(shared[-1]) <= own_level(1)
    for number in range(2, ATTEMPTS + 1):
        share = np.array(_SHARES)[:, None]
        likeliest = ((-ndtri(own_level(number)) - share**0.5 * scores) / (1 - share) ** 0.5).argmin(0)
        p = np.stack([p_of(had + outcomes(problems - end)) for had, end in zip(shared, ends, strict=False)])
        wrong |= p[likeliest, np.arange(runs)] <= own_level(number)
    return float(wrong.mean())


def as_strict_as_shown(problems: int, churn: float, runs: int, rng: np.random.Generator, hands_on: bool) -> float:
    """Tests each draft for an easy retention and, if that passes, for the strictest that its counts let pass.

    The retention of all drafts is exactly what is wanted, so the strictest claim is false where the test would pass
    what is wanted.
    """
    wrong, level = np.zeros(runs, bool), np.zeros(runs)
    for draft in range(ATTEMPTS):
        counts = World("flat", problems, churn).draw(runs, rng)[:, -1]
        level = own_level(2 * draft + 1) + level * hands_on
        both, lost, gained, neither = np.moveaxis(counts, -1, 0)
        granted = p_values(both, lost, gained, neither, _EASY) <= level
        level = own_level(2 * draft + 2) + np.where(granted, level, 0.0) * hands_on
        wrong |= granted & (p_of(counts) <= level)
        level = np.where(granted, level, 0.0)  # the strictest passes
    return float(wrong.mean())


CHOICES = {"in turn": in_turn, "until one passes": until_one_passes, "told by outcomes": by_outcomes}
DRAFTS = {  # the shapes of five drafts' retention
    "all just fail": ("flat",) * ATTEMPTS,
    "loose settings just fail": ("edge",) * ATTEMPTS,
    "the last just fails": (*("kept",) * (ATTEMPTS - 1), "flat"),
    "some settings of some just fail": ("kept", "edge", "kept", "edge", "flat"),
    "all fall in a line": ("linear",) * ATTEMPTS,
}


def attempts(problems: Sequence[int], churns: Sequence[float], runs: int, rng: np.random.Generator) -> dict[str, Any]:
    shares = list[Share]()
    for (name, shapes), number, churn, alike in product(DRAFTS.items(), problems, churns, _ALIKE):
        drafts, what = draw_drafts(shapes, number, churn, alike, runs, rng), line(name, number, churn, alike)
        shares.append(Share(what, "one sequence", one_sequence(drafts)))
        for (choice, share_false), (levels, rule) in product(CHOICES.items(), RULES.items()):
            shares.append(Share(what, f"{choice}; {levels}", share_false(drafts, rule)))
    for number, churn in product(problems, churns):
        what = line("all just fail", number, churn, "chosen")
        shares.append(Share(what, "against the test; counted", chosen_against(number, churn, runs, rng)))
        for levels, hands_on in (("counted", False), ("counted, all passed hands on", True)):
            false = as_strict_as_shown(number, churn, runs, rng, hands_on)
            shares.append(Share(what, f"as strict as shown; {levels}", false))
    columns = "drafts | problems | churn | alike | choice; levels, then the share with a false certificate"
    return summarise(shares, columns, 1 - CONFIDENCE, runs)
