"""Counts rounds of fixed draft lengths, all at once, from the distances between rejections.

Knows graded rows. Knows no early stop: with one, see `lockstep.py`.

Every rejection is a renewal: whatever L is, a round begins right behind it. Rounds that begin behind one
rejection emit L + 1 tokens each until they reach the next, where one ends: either there the fallback is emitted, or
it is the place of a bonus token, which needs no draft. So a rejection that comes g tokens behind the last one
closes ceil(g / (L + 1)) rounds, and so does the completion's end. An accepted token s places behind the last
rejection is emitted unless the bonus stands there, s mod (L + 1) = 0. Histograms of g and s thus answer for every L.
"""

from __future__ import annotations

import numpy as np

from fsd_collectors.replay.blocks import Array, Block
from fsd_collectors.replay.grades import Grades


def count_gaps(grades: Grades, block: Block, thresholds: int, lengths: Array) -> Array:
    """Sums over a block's completions: rounds, drafted tokens, substitutions, (3, thresholds, lengths)."""
    last = np.zeros(block.rows, bool)
    last[block.ends - 1] = True
    places = np.flatnonzero((grades.grade > 0) | last)  # only here a threshold decides, or a completion ends
    few, last = Grades(grades.grade[places], grades.differs[places]), last[places]
    behind = np.arange(block.longest + 1)[:, None]  # (longest + 1, 1)
    rounds_of, emitted = -(-behind // (lengths + 1)), behind % (lengths + 1) != 0  # (longest + 1, lengths)
    rounds, substitutions = [], []
    for k in range(thresholds):
        rejected = few.rejected(k)
        gaps, since = _distances(places, rejected | last)
        rounds.append(np.bincount(gaps, minlength=len(behind)) @ rounds_of)
        substitutions.append(np.bincount(since[few.differs & ~rejected], minlength=len(behind)) @ emitted)
    return np.stack([np.array(rounds), np.array(rounds) * lengths, np.array(substitutions)])


def _distances(places: Array, closes: Array) -> tuple[Array, Array]:
    """From each closing row to the one before it, and from each of `places` to the closing row before it."""
    closing = np.flatnonzero(closes)
    closed = places[closing]
    before = np.concatenate([[-1], closed[:-1]])
    return closed - before, places - np.repeat(before, np.diff(closing, prepend=-1))
