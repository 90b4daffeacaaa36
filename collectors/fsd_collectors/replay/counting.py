"""Counts rounds of fixed draft lengths, all at once, from the distances between rejections.

Knows graded rows. Knows no early stop: with one, see `lockstep.py`.

Every rejection is a renewal: whatever L is, a round begins right behind it. Rounds that begin behind one
rejection emit L + 1 tokens each until they reach the next, where one ends: either there the fallback is emitted, or
it is the place of a bonus token, which needs no draft. So a rejection that comes g tokens behind the last one
closes ceil(g / (L + 1)) rounds, and so does the completion's end. An accepted token s places behind the last
rejection is emitted unless the bonus stands there, s mod (L + 1) = 0. Histograms of g and s thus answer for every L.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fsd_collectors.replay.blocks import Array, Block
from fsd_collectors.replay.cases import Grades

# MERGED: """Counts rounds token by token, in all completions, thresholds and lengths at once: for drafts that may stop early.
#
# Knows graded rows and how far drafts get. Where nothing stops them `gaps.py` gives the same sums, sooner.
# """


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


STEPPED_ROWS = 1 << 18  # a block's: a step in Python should move many completions
_LANES = 1 << 20  # thresholds x lengths x completions that move at once: about 12 bytes each


@dataclass(frozen=True)
class Walk:
    """Of each threshold, length and completion: (thresholds, lengths, c) each."""

    rounds: Array
    drafted: Array
    substitutions: Array


def count_steps(walked_at: Callable[[Array, Array], Walk], completions: int, thresholds: int, lengths: Array) -> Array:
    """Sums over a block's completions: rounds, drafted tokens, substitutions, (3, thresholds, lengths).

    Args:
        walked_at: of places of thresholds, and lengths, the block's walk; asked for as many at once as memory likes.
    """
    step = max(1, _LANES // (len(lengths) * completions))
    parts = []
    for k in range(0, thresholds, step):
        walked = walked_at(np.arange(k, min(k + step, thresholds)), lengths)
        parts.append([kind.sum(-1) for kind in (walked.rounds, walked.drafted, walked.substitutions)])
    return np.concatenate(parts, axis=1)


def walk(grades: Grades, block: Block, reach: Array, ks: Array, lengths: Array) -> Walk:
    """Every round at the `ks`-th thresholds, from 0, of drafts of at most `lengths` and `reach` tokens (n,)."""
    starts, longer, back = _longest_first(block)
    shape = len(ks), len(lengths), len(starts)
    most = lengths.astype(reach.dtype)[:, None]  # (lengths, 1)
    left, begins = np.zeros(shape, reach.dtype), np.ones(shape, bool)  # tokens to draft before a bonus; a round begins
    rounds, drafted, substitutions = np.zeros((3, *shape), np.min_scalar_type(block.longest * int(lengths.max())))
    for position, lanes in enumerate(longer):
        rows, on = starts[:lanes] + position, np.s_[..., :lanes]
        begin, rest = begins[on], left[on]  # views
        drafts = np.minimum(most, reach[rows])  # (lengths, lanes)
        np.copyto(rest, drafts, where=begin)
        rounds[on] += begin
        drafted[on] += begin * drafts
        rejected = grades.grade[rows] > ks[:, None, None] + 1  # (ks, 1, lanes)
        substitutions[on] += (grades.differs[rows] & ~rejected) & (rest > 0)
        np.logical_or(rest == 0, rejected, out=begin)
        rest -= 1  # of those that begin anew it does not matter
    return Walk(*(kind[..., back].astype(np.int64) for kind in (rounds, drafted, substitutions)))


def _longest_first(block: Block) -> tuple[Array, Array, Array]:
    """Rows where completions begin, longest first; how many are longer than each position; the way back."""
    sizes = block.ends - block.starts
    order = np.argsort(-sizes, kind="stable")
    longer = len(sizes) - np.searchsorted(np.sort(sizes), np.arange(block.longest), side="right")
    return block.starts[order], longer, np.argsort(order)
