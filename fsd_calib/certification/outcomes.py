"""Grades of the target and of a fuzzy rule on the same problems, and the counts of their pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fsd_common.errors import UsageError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Gradings = NDArray[np.bool_]


@dataclass(frozen=True)
class Outcomes:
    """Counts of (problem, seed) pairs by whether the target and the fuzzy rule solved them."""

    both_right: int
    lost: int  # the target alone was right
    gained: int  # the fuzzy rule alone was right
    both_wrong: int

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0:
            raise ValueError(f"{self} has a negative count")

    @classmethod
    def of(cls, target: Sequence[bool] | Gradings, fuzzy: Sequence[bool] | Gradings) -> Outcomes:
        """Returns the counts of grades in the same order."""
        pairs = Counter((bool(t), bool(f)) for t, f in zip(target, fuzzy, strict=True))
        return cls(pairs[True, True], pairs[True, False], pairs[False, True], pairs[False, False])

    @property
    def problems(self) -> int:
        return self.both_right + self.lost + self.gained + self.both_wrong

    @property
    def retention(self) -> float:
        """Accuracy of the fuzzy rule over the target's.

        Raises:
            UsageError: The target solved nothing.
        """
        require_solved(self)
        return (self.both_right + self.gained) / (self.both_right + self.lost)

    @property
    def churn(self) -> float:
        """Share of outcomes that flipped, lost or gained."""
        return (self.lost + self.gained) / self.problems if self.problems else 0.0


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
    def outcomes(self) -> Outcomes:
        t, f = self.target, self.fuzzy
        return Outcomes(*(int(np.count_nonzero(both)) for both in (t & f, t & ~f, ~t & f, ~(t | f))))

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


def require_solved(outcomes: Outcomes) -> None:
    """Checks that retention is defined.

    Raises:
        UsageError: The target solved nothing.
    """
    if not outcomes.both_right + outcomes.lost:
        raise UsageError(
            f"the target solved none of {outcomes.problems} problems, so retention is undefined; "
            "check its prompts and answers, or use another target"
        )
