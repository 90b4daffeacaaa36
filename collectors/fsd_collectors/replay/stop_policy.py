"""Policies that end drafts early by the columns of traces, and the draft lengths they lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fsd_collectors.replay.blocks import Array, Block
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
        tokens = _lengths(policy, block, most)
    else:
        tokens = _until_a_stop(policy, block, most)
    return tokens.astype(np.min_scalar_type(most))


def _lengths(policy: LengthPolicy, block: Block, most: int) -> Array:
    lengths = np.asarray(policy.lengths(block.columns, most))
    integers = lengths.shape == (block.rows,) and np.issubdtype(lengths.dtype, np.integer)
    if not integers or lengths.min() < 0 or lengths.max() > most:
        raise UsageError(
            f"the length policy returned {lengths.dtype} of shape {lengths.shape}; it must return a whole number for "
            f"each row, from 0 to {most}: ({block.rows},)"
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
