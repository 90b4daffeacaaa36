"""The outcomes and counts of problems decoded under one setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from fsd_collectors.split import Part
from fsd_decoding.profile.setting import Setting

if TYPE_CHECKING:
    from fsd_calib.tasks.base import Problem


@dataclass(frozen=True)
class Decoding:
    """One problem under one setting, with the noise of one seed."""

    correct: bool
    text: str
    tokens: int  # emitted, EOS included
    rounds: int
    drafted: int
    accepted: int
    largest_kept: float = field(default=-math.inf, compare=False)  # score at most T, which rounds with the batch


Seeds = tuple[Decoding, ...]
"""One problem's decodings, one per seed; greedy decoding has one."""


def groups_of(problems: Sequence[Problem]) -> NDArray[np.int64] | None:
    """Returns, (n,), numbers of the problems' groups, of which one that has none is alone; None: none has any."""
    if all(problem.group is None for problem in problems):
        return None
    alone = [-1 - place if problem.group is None else problem.group for place, problem in enumerate(problems)]
    return np.asarray(np.unique(alone, return_inverse=True)[1], np.int64)


@dataclass(frozen=True, eq=False)
class Measurement:
    """One setting on the first problems of a part, in the part's order.

    Attributes:
        groups: (problems,): see `groups_of`.
    """

    setting: Setting
    part: Part
    decodings: Sequence[Seeds]
    groups: NDArray[np.int64] | None = None

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Grades, (problems, seeds)."""
        return np.array([[d.correct for d in seeds] for seeds in self.decodings], bool)

    @property
    def problems(self) -> int:
        return len(self.decodings)

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def tokens(self) -> int:
        return sum(d.tokens for seeds in self.decodings for d in seeds)

    @property
    def rounds(self) -> int:
        return sum(d.rounds for seeds in self.decodings for d in seeds)

    @property
    def drafted(self) -> int:
        return sum(d.drafted for seeds in self.decodings for d in seeds)

    @property
    def accepted(self) -> int:
        return sum(d.accepted for seeds in self.decodings for d in seeds)

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds

    def first(self, problems: int) -> Measurement:
        """Returns the measurement on the first problems only."""
        groups = None if self.groups is None else self.groups[:problems]
        return replace(self, decodings=self.decodings[:problems], groups=groups)


COPIES: Final = 3
LENGTH: Final = 60


def ends_in_loop(text: str) -> bool:
    """Returns whether a text ends in one passage, three times or more in a row, over at least 60 characters.

    White space at the end does not count. The last copy may be cut off by the limit on new tokens at any place, since
    the copies of a passage that begins elsewhere then end there.
    """
    text = text.rstrip()
    last = text[-1:]
    for length in range(1, len(text) // COPIES + 1):
        span = max(COPIES * length, LENGTH)
        if span > len(text):
            return False
        if text[-1 - length] == last and text[-span:-length] == text[-span + length :]:
            return True
    return False


def flips(fuzzy: Measurement, target: Measurement) -> float:
    """Returns the sum over problems of the squared mean difference over seeds: the variance of the change, summed.

    With one seed it is the number of losses plus gains.
    """
    difference = fuzzy.correct.mean(1) - target.correct.mean(1)  # (problems,)
    return float(np.square(difference).sum())


def with_losses(fuzzy: Measurement, target: Measurement, problems: int) -> Measurement:
    """Returns the measurement with more problems lost, among those that both solve under some seed."""
    return _with_grades(fuzzy, np.flatnonzero((fuzzy.correct & target.correct).any(1))[:problems], correct=False)


def with_gains(fuzzy: Measurement, target: Measurement, problems: int) -> Measurement:
    """Returns the measurement with more problems solved, lost ones first."""
    lost = (target.correct & ~fuzzy.correct).any(1)
    failed = ~fuzzy.correct.any(1) & ~lost
    return _with_grades(fuzzy, np.append(np.flatnonzero(lost), np.flatnonzero(failed))[:problems], correct=True)


def _with_grades(fuzzy: Measurement, which: np.ndarray[tuple[int], np.dtype[np.intp]], correct: bool) -> Measurement:
    decodings = list(fuzzy.decodings)
    for i in which.tolist():
        decodings[i] = tuple(replace(seed, correct=correct) for seed in decodings[i])
    return replace(fuzzy, decodings=decodings)


def plausible_flips(flipped: float, decoded: int, whole: int, deviations: float) -> tuple[int, int]:
    """Returns how many more and how many fewer flips the whole part may plausibly show, scaled to the decoded problems.

    Rao's score interval of a Poisson mean, which never takes a few flips for certainty (0 flips: up to the square of
    `deviations`), narrowed by the share of problems not yet decoded: at `decoded` = `whole` it has no width.
    """
    to_come = 1 - decoded / whole
    half = deviations**2 / 2 * to_come
    reach = math.sqrt(deviations**2 * flipped * to_come + half**2)
    return math.ceil(reach + half), math.ceil(max(reach - half, 0))
