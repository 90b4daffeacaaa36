"""Counts of rounds, drafted tokens and substitutions in a block, for all thresholds and draft lengths at once.

Where drafts have a fixed length, `count_fixed_lengths` needs only the distances between rejections. Where they may end
early by the columns of traces, `count_in_lockstep` walks through all completions token by token; without early stops
it gives the same counts, more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fsd_collectors.replay.blocks import Array, Block
from fsd_collectors.replay.cases import AcceptanceLevels
from fsd_common.errors import UsageError


@dataclass(frozen=True)
class StopPolicy:
    """Ends a draft by facts about a single drafted token; every round drafts at least one.

    Args:
        columns: columns of the traces that `ends` reads.
        ends: receives these columns, (n,) each, and returns a mask (n,) of the tokens after which a draft ends.
    """

    columns: tuple[str, ...]
    ends: Callable[[Mapping[str, Array]], Array]


@dataclass(frozen=True)
class LengthPolicy:
    """Decides the length of a draft from all rows ahead: for policies that accumulate over a draft, or draft nothing.

    Args:
        columns: columns of the traces that `lengths` reads.
        lengths: receives these columns, (n,) each, and L; returns the length (n,), 0 to L, of a draft that begins at
            each row. The rows of several completions follow one another; the column `position`, which is always
            present, is 0 where a completion begins.
    """

    columns: tuple[str, ...]
    lengths: Callable[[Mapping[str, Array], int], Array]


Policy = StopPolicy | LengthPolicy


def reach(policy: Policy | None, block: Block, most: int) -> Array:
    """Returns the length (n,) of a draft that begins at each row, at most `most`, in the smallest integer type."""
    if policy is None:
        tokens = np.full(block.rows, most)
    elif isinstance(policy, LengthPolicy):
        tokens = checked_lengths(policy.lengths(block.columns, most), most, block.rows, "length")
    else:
        tokens = _until_a_stop(policy, block, most)
    return tokens.astype(np.min_scalar_type(most))


def checked_lengths(given: Array, most: Array | int, count: int, policy: str) -> Array:
    """Returns draft lengths (count,). Raises UsageError where they are no whole numbers from 0 to `most`."""
    lengths = np.asarray(given)
    integers = lengths.shape == (count,) and np.issubdtype(lengths.dtype, np.integer)
    if not integers or (lengths < 0).any() or (lengths > most).any():
        largest = most if isinstance(most, int) else "its lane's largest draft length"
        raise UsageError(
            f"the {policy} policy returned {lengths.dtype} of shape {lengths.shape}; it must return a whole number for "
            f"each draft, from 0 to {largest}: ({count},)"
        )
    return lengths


def _until_a_stop(policy: StopPolicy, block: Block, most: int) -> Array:
    stops = np.asarray(policy.ends(block.columns))
    if stops.dtype != bool or stops.shape != (block.rows,):
        raise UsageError(
            f"the stop policy returned {stops.dtype} of shape {stops.shape}; it must return one bool for each row: "
            f"({block.rows},)"
        )
    places = np.flatnonzero(stops)
    none = block.rows + most  # stands for no stop
    following = np.repeat(np.append(places, none), np.diff(places, prepend=-1, append=block.rows - 1))  # (n,)
    unseen = following >= np.repeat(block.ends, block.ends - block.starts)
    return np.minimum(np.where(unseen, most, following - np.arange(block.rows) + 1), most)


STEPPED_ROWS = 1 << 18  # rows of a block that is walked through: each step in Python should move many completions
LANES = 1 << 20  # thresholds x lengths x completions that are walked at once, of about 12 bytes each


def count_fixed_lengths(levels: AcceptanceLevels, block: Block, thresholds: int, lengths: Array) -> Array:
    """Counts the rounds of drafts of fixed length.

    Every rejection is a renewal: whatever L is, a round begins right after it. The rounds after a rejection emit L + 1
    tokens each until they reach the next rejection, where a round ends: either the target's token is emitted there
    instead of the draft's, or it is the position of a bonus token, which needs no draft. So a rejection g tokens after
    the last one closes ceil(g / (L + 1)) rounds, and so does the end of the completion. A token accepted s positions
    after the last rejection is emitted unless the bonus token is there, s mod (L + 1) = 0. Histograms of g and s
    therefore yield the counts for every L.

    Args:
        levels: acceptance levels of the block's rows.
        block: whole completions.
        thresholds: number of thresholds.
        lengths: draft lengths L.

    Returns:
        Sums over the completions of rounds, drafted tokens and substitutions: (3, thresholds, lengths).
    """
    last = np.zeros(block.rows, bool)
    last[block.ends - 1] = True
    rows = np.flatnonzero((levels.level > 0) | last)  # only here a threshold decides, or a completion ends
    few, last = AcceptanceLevels(levels.level[rows], levels.differs[rows]), last[rows]
    distances = np.arange(block.longest + 1)[:, None]  # (longest + 1, 1)
    rounds_of, emitted = -(-distances // (lengths + 1)), distances % (lengths + 1) != 0  # (longest + 1, lengths)
    rounds, substitutions = [], []
    for k in range(thresholds):
        rejected = few.rejected(k)
        gaps, since = _distances(rows, rejected | last)
        rounds.append(np.bincount(gaps, minlength=len(distances)) @ rounds_of)
        substitutions.append(np.bincount(since[few.differs & ~rejected], minlength=len(distances)) @ emitted)
    return np.stack([np.array(rounds), np.array(rounds) * lengths, np.array(substitutions)])


def _distances(rows: Array, closes: Array) -> tuple[Array, Array]:
    """Returns the distance of each closing row, and of each of `rows`, to the closing row before it."""
    closing = np.flatnonzero(closes)
    closed = rows[closing]
    before = np.concatenate([[-1], closed[:-1]])
    return closed - before, rows - np.repeat(before, np.diff(closing, prepend=-1))


def count_in_lockstep(
    levels: AcceptanceLevels, block: Block, reach: Array, ks: Array, lengths: Array, window: int = 0
) -> Array:
    """Counts the rounds of drafts that may end early, one position of all completions after another.

    Args:
        levels: acceptance levels of the block's rows.
        block: whole completions.
        reach: (n,) largest length of a draft that begins at each row.
        ks: indices of the thresholds, from 0.
        lengths: largest draft lengths.
        window: how many more tokens a draft must have where a threshold accepts.

    Returns:
        Rounds, drafted tokens and substitutions: (3, thresholds, lengths, completions).
    """
    starts, longer, back = _longest_first(block)
    shape = len(ks), len(lengths), len(starts)
    most = lengths.astype(reach.dtype)[:, None]  # (lengths, 1)
    left, begins = np.zeros(shape, reach.dtype), np.ones(shape, bool)  # drafted tokens left; whether a round begins
    counts = np.zeros((3, *shape), np.min_scalar_type(block.longest * int(lengths.max())))
    rounds, drafted, substitutions = counts  # views
    for position, lanes in enumerate(longer):
        rows, on = starts[:lanes] + position, np.s_[..., :lanes]
        begin, rest = begins[on], left[on]  # views
        drafts = np.minimum(most, reach[rows])  # (lengths, lanes)
        np.copyto(rest, drafts, where=begin)
        rounds[on] += begin
        drafted[on] += begin * drafts
        rejected = levels.level[rows] > ks[:, None, None] + 1  # (ks, 1, lanes)
        if window:
            rejected = rejected | (levels.level[rows] > 0) & (rest <= window)  # (ks, lengths, lanes)
        substitutions[on] += (levels.differs[rows] & ~rejected) & (rest > 0)
        np.logical_or(rest == 0, rejected, out=begin)
        rest -= 1  # may wrap where a round begins next: it is overwritten there
    return counts[..., back].astype(np.int64)


def _longest_first(block: Block) -> tuple[Array, Array, Array]:
    """Sorts the completions by length, longest first.

    Returns:
        The rows where the sorted completions begin, the number of completions longer than each position, and the
        indices that undo the sorting.
    """
    sizes = block.ends - block.starts
    order = np.argsort(-sizes, kind="stable")
    longer = len(sizes) - np.searchsorted(np.sort(sizes), np.arange(block.longest), side="right")
    return block.starts[order], longer, np.argsort(order)
