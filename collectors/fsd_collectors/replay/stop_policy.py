"""Drafts that may end early: a policy over the draft's columns, and how far drafts get under it.

Knows a block's rows. Knows nothing of rules or rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fsd_collectors.replay.blocks import Array, Block
from fsd_decoding.errors import UsageError


@dataclass(frozen=True)
class StopPolicy:
    """When to draft no further, by what is known of one token once it is drafted.

    columns: of the traces, those that `ends` asks for. ends: of them, (n,) each, says for each row (n,) bool whether
    the draft ends behind this token if it comes to draft it. A round so drafts one token at least.
    """

    columns: tuple[str, ...]
    ends: Callable[[Mapping[str, Array]], Array]


@dataclass(frozen=True)
class LengthPolicy:
    """How far to draft, by the whole of what lies ahead: for policies that add up what was drafted, or draft nothing.

    columns: of the traces, those that `lengths` asks for. lengths: of them, (n,) each, and of L, says for each row
    (n,) how many tokens a draft has that begins there, 0 to L. Rows of several completions follow one another:
    `position`, which is always there, is 0 where one begins.
    """

    columns: tuple[str, ...]
    lengths: Callable[[Mapping[str, Array], int], Array]


Policy = StopPolicy | LengthPolicy


def reach(policy: Policy | None, block: Block, most: int) -> Array:
    """Tokens a draft has that begins at each row, `most` where the text tells no less: (n,), the smallest type."""
    if policy is None:
        tokens = np.full(block.rows, most)
    elif isinstance(policy, LengthPolicy):
        tokens = _lengths(policy, block, most)
    else:
        tokens = _until_a_stop(policy, block, most)
    return tokens.astype(np.min_scalar_type(most))


def _lengths(policy: LengthPolicy, block: Block, most: int) -> Array:
    given = np.asarray(policy.lengths(block.columns, most))
    whole = given.shape == (block.rows,) and np.issubdtype(given.dtype, np.integer)
    if not whole or given.min() < 0 or given.max() > most:
        raise UsageError(
            f"the length policy gave {given.dtype} of shape {given.shape}; it must give a whole number a row, from 0 "
            f"to {most}: ({block.rows},)"
        )
    return given


def _until_a_stop(policy: StopPolicy, block: Block, most: int) -> Array:
    stops = np.asarray(policy.ends(block.columns))
    if stops.dtype != bool or stops.shape != (block.rows,):
        raise UsageError(
            f"the stop policy gave {stops.dtype} of shape {stops.shape}; it must give one bool a row: ({block.rows},)"
        )
    places = np.flatnonzero(stops)
    none = block.rows + most  # stands for a stop that never comes
    following = np.repeat(np.append(places, none), np.diff(places, prepend=-1, append=block.rows - 1))  # (n,)
    unseen = following >= np.repeat(block.ends, block.ends - block.starts)
    return np.minimum(np.where(unseen, most, following - np.arange(block.rows) + 1), most)
