"""Grades of the target and of a fuzzy rule on the same problems, and the counts of their pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from fsd_decoding.profile.certificate import OutcomeCounts

if TYPE_CHECKING:
    from fsd_calib.measuring.measurement import Measurement

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Gradings = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Paired:
    """Grades, (problems, seeds), in the part's order; target and fuzzy rule share a seed's noise.

    Args:
        groups: (problems,): numbers of groups of problems that are not independent of each other; None: all are.
    """

    target: Gradings
    fuzzy: Gradings
    groups: Counts | None = None

    @classmethod
    def of(cls, target: Measurement, fuzzy: Measurement) -> Self:
        """Returns the grades of two measurements on the same problems."""
        return cls(target.correct, fuzzy.correct, fuzzy.groups)

    def __post_init__(self) -> None:
        if self.target.ndim != 2 or self.target.shape != self.fuzzy.shape or not self.target.size:
            raise ValueError(
                f"gradings of shape {self.target.shape} and {self.fuzzy.shape}; both must be (problems, seeds)"
            )

    @property
    def problems(self) -> int:
        return len(self.target)

    @property
    def seeds(self) -> int:
        return int(self.target.shape[1])

    @cached_property
    def _unit_of(self) -> Counts:
        """The unit of the test that each problem belongs to: its group, or itself.

        In the order of their first problems, so that those of a prefix come first.
        """
        if self.groups is None:
            return np.arange(self.problems)
        _, first, unit = np.unique(self.groups, return_index=True, return_inverse=True)
        return np.asarray(first.argsort().argsort()[unit])

    def summed(self, values: Floats) -> Floats:
        """Returns sums over a unit's problems, (units,), of values of problems."""
        return np.asarray(np.bincount(self._unit_of, weights=values), np.float64)

    @cached_property
    def units(self) -> tuple[Floats, Floats]:
        """Right answers of target and fuzzy rule, summed over a unit's problems, of means over seeds: (units,) each."""
        return self.summed(self.target.mean(1)), self.summed(self.fuzzy.mean(1))

    @property
    def unit_sizes(self) -> Floats:
        """Numbers of problems, by unit: (units,)."""
        return self.summed(np.ones(self.problems))

    @property
    def bounded_units(self) -> tuple[Floats, Floats]:
        """The same, as shares of the largest unit."""
        largest, (target, fuzzy) = self.unit_sizes.max(), self.units
        return target / largest, fuzzy / largest

    @property
    def unit_flips(self) -> Floats:
        """Outcomes that flipped, by unit: (units,)."""
        return self.summed((self.target != self.fuzzy).sum(1).astype(np.float64))

    @cached_property
    def outcomes(self) -> OutcomeCounts:
        t, f = self.target, self.fuzzy
        return OutcomeCounts(*(int(np.count_nonzero(both)) for both in (t & f, t & ~f, ~t & f, ~(t | f))))

    @property
    def target_accuracy(self) -> float:
        return float(self.target.mean())

    @property
    def accuracy(self) -> float:
        return float(self.fuzzy.mean())

    @property
    def retention(self) -> float:
        """Accuracy of the fuzzy rule over the target's.

        Raises:
            UsageError: The target solved nothing.
        """
        return self.outcomes.retention

    @property
    def churn(self) -> float:
        return float((self.target != self.fuzzy).mean())

    @cached_property
    def table(self) -> Counts:
        """Counts, (seeds + 1, seeds + 1): problems that the target solved with a seeds and the fuzzy rule with b."""
        counts = np.zeros((self.seeds + 1, self.seeds + 1), np.int64)
        np.add.at(counts, (self.target.sum(1), self.fuzzy.sum(1)), 1)
        return counts

    def against_perfect(self) -> Paired:
        """Returns the grades beside a target that is always right, whose retention is the absolute accuracy."""
        return Paired(np.ones_like(self.target), self.fuzzy, self.groups)

    def of_seed(self, seed: int) -> Paired:
        """Returns the grades under one seed, by its place."""
        return Paired(self.target[:, [seed]], self.fuzzy[:, [seed]], self.groups)

    def part(self, start: int, end: int) -> Paired:
        """Returns the grades of the problems from `start` to `end`."""
        return Paired(
            self.target[start:end], self.fuzzy[start:end], None if self.groups is None else self.groups[start:end]
        )

    def followed_by(self, target: NDArray[np.bool_], fuzzy: NDArray[np.bool_]) -> Paired:
        """Returns the grades with more problems appended, (more,), of which all seeds are graded alike.

        Each is in a group of its own.
        """
        return self._with(target, fuzzy, lambda own, more: np.concatenate([own, more]))

    def preceded_by(self, target: bool, fuzzy: bool, problems: int) -> Paired:
        """Returns the grades with such problems, all graded alike, before all others."""
        more = np.full(problems, target), np.full(problems, fuzzy)
        return self._with(*more, lambda own, more: np.concatenate([more, own]))

    def _with(
        self, target: NDArray[np.bool_], fuzzy: NDArray[np.bool_], join: Callable[[Any, Any], Any]
    ) -> Paired:  # fmt: skip
        more, groups = [np.repeat(grades[:, None], self.seeds, 1) for grades in (target, fuzzy)], self.groups
        return Paired(
            join(self.target, more[0]),
            join(self.fuzzy, more[1]),
            None if groups is None else join(groups, groups.max() + 1 + np.arange(len(target))),
        )
