"""Grades of the target and of a fuzzy rule on the same problems, and the counts of their pairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fsd_decoding.profile.parts import OutcomeCounts

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Gradings = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Paired:
    """Grades, (problems, seeds), in the part's order; target and fuzzy rule share a seed's noise."""

    target: Gradings
    fuzzy: Gradings

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
        return Paired(np.ones_like(self.target), self.fuzzy)

    def followed_by(self, target: bool, fuzzy: bool, problems: int) -> Paired:
        """Returns the grades with more problems appended, all graded alike."""
        more = (problems, self.seeds)
        return Paired(
            np.concatenate([self.target, np.full(more, target)]), np.concatenate([self.fuzzy, np.full(more, fuzzy)])
        )
