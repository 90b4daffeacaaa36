"""Several attempts on one certification part, each with another draft or other settings, in many runs at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from fsd_calib.certification.score_test import p_values
from lib.validity.shares import CONFIDENCE, Share, line, own_level, summarise
from lib.validity.sizes import Counts, Floats
from lib.validity.worlds import WANTED, Bools, World, in_sequence, p_of

ATTEMPTS = 5
_ALIKE = (0.0, 0.5)  # shares of the problems with the same outcomes under all drafts
_FROZEN = 3  # settings of an attempt
_NOTCHES = 3  # steps of the threshold between two of them
_FIRST = 5  # index of the safest threshold of the first attempt
_EASY = 0.9  # a required retention that is far below the true one
_NEARLY = 0.2  # a p-value after which the same draft is tried again
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)  # shares of the problems with the same outcomes as under the first draft


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


Rule = Callable[[int], Levels]
RULES: dict[str, Rule] = {  # how attempts get their levels, by the number of runs
    # As if each draft had a certification part of its own.
    "each the first": partial(Levels, own=lambda _: own_level(1)),
    "counted": partial(Levels, own=own_level),
    "counted, all passed hands on": partial(Levels, own=own_level, hands_on=_every),
    "counted, any pass hands on (wrong)": partial(Levels, own=own_level, hands_on=_any),
}


def _ladder(first: Counts) -> Counts:
    """Returns the thresholds of an attempt, safest first, (runs, frozen)."""
    return first[:, None] + _NOTCHES * np.arange(_FROZEN)


_LADDER = _ladder(np.array([_FIRST]))[0]


def in_turn(drafts: Drafts, rule: Rule, stops: bool = False) -> float:
    """Tries each draft, whatever the others showed; returns the share of runs with a false certificate.

    Args:
        stops: a draft is tried only where no setting of an earlier one passed.
    """
    runs = len(drafts.p)
    levels, wrong, going = rule(runs), np.zeros(runs, bool), np.ones(runs, bool)
    for draft in range(ATTEMPTS):
        passed = levels.test(drafts.p[:, draft, _LADDER]) & going[:, None]
        wrong |= (passed & drafts.false[draft, _LADDER]).any(1)
        if stops:
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
    p = drafts.p[:, :, _LADDER].transpose(0, 2, 1).reshape(len(drafts.p), -1)
    passed = in_sequence(p, own_level(1))
    return float((passed & drafts.false[:, _LADDER].T.ravel()).any(1).mean())


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


CHOICES: dict[str, Callable[[Drafts, Rule], float]] = {
    "in turn": in_turn,
    "until one passes": partial(in_turn, stops=True),
    "told by outcomes": by_outcomes,
}
UNSOUND = (
    *(f"{choice}; {rule}" for choice in CHOICES for rule in ("each the first", "counted, any pass hands on (wrong)")),
    "as strict as shown; counted, all passed hands on",
)
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
    return summarise(shares, columns, 1 - CONFIDENCE, runs, UNSOUND)
