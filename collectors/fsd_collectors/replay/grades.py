"""Which thresholds accept a token: one small integer a row that answers for all of them.

Knows a case and a block's columns. Knows nothing of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fsd_collectors.replay.blocks import Array, Block
from fsd_collectors.replay.cases import Case


@dataclass(frozen=True)
class Grades:
    """grade: (n,) 0 where the rule's exact part accepts x, k where the k-th threshold is the first that does, else
    m + 1. differs: (n,) bool, accepting x by D would put it in the place of another token of the target's."""

    grade: Array
    differs: Array

    def rejected(self, k: int) -> Array:
        """(n,) bool at the k-th threshold, from 0."""
        return np.asarray(self.grade > k + 1)


def grades_of(case: Case, block: Block) -> Grades:
    """Of every row of the block."""
    never = len(case.thresholds) + 1
    if case.divergence is None:
        grade = np.full(block.rows, never)
    else:
        d = block.columns[case.divergence]
        grade = np.searchsorted(case.thresholds, d) + 1
        grade[~np.isfinite(d)] = never  # as in decoding: no T accepts them
    grade = grade.astype(np.min_scalar_type(never))
    if case.exact is not None:
        grade[block.columns[case.exact]] = 0
    return Grades(grade, ~block.columns["same_token"] & (grade > 0))
