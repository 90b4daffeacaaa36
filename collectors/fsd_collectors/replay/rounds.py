"""Lays rounds over completions under a policy that remembers what came of a text's earlier ones.

Knows what a case accepts, row by row, and how rounds follow one another. Knows neither what policies look at nor what
their rounds are wanted for. For drafts that depend on what lies ahead only, `lockstep.py` counts the same, sooner.

A **lane** is one completion at one threshold with one longest draft. All lanes move at once, a round at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from fsd_collectors.replay.blocks import Array, Block
from fsd_collectors.replay.cases import REPLAYABLE, Case
from fsd_collectors.replay.counting import Walk
from fsd_decoding.errors import UsageError

_LANES = 1 << 16  # that a count moves at once: a policy looks at some hundred bytes of each


@dataclass(frozen=True)
class Lanes:
    """n lanes, all columns (n,)."""

    starts: Array  # row where its completion begins
    ends: Array  # row behind its last
    thresholds: Array  # float64; of no use to rules that have none
    most: Array  # its longest draft

    def taken(self, which: Array | slice) -> Self:
        return type(self)(*(getattr(self, field.name)[which] for field in fields(self)))


@dataclass(frozen=True)
class Begins:
    """Where the next rounds of n lanes begin, and what is known there."""

    columns: Mapping[str, Array]  # of all rows; `position`, which is always there, is the place in the completion
    divergence: str | None
    lanes: Lanes
    rows: Array  # (n,) of the rounds' first tokens
    memory: Array  # (n, width) float64, what the policy made of the lanes' earlier rounds

    def taken(self, which: Array) -> Self:
        return replace(self, lanes=self.lanes.taken(which), rows=self.rows[which], memory=self.memory[which])


@dataclass(frozen=True)
class Verified:
    """What came of n rounds, (n,) each: what the engine tells of one (`fsd_decoding.policies.stopping.Verified`).

    spared, refused: float64, NaN where no divergence alone kept a token, or rejected one. In a text's last round
    nothing behind its end counts as accepted.
    """

    drafted: Array
    accepted: Array
    spared: Array
    refused: Array


@dataclass(frozen=True)
class RoundPolicy:
    """How far to draft, by what lies ahead and by what came of earlier rounds.

    columns: of the traces, those that `lengths` asks for. lengths: of rounds that begin, says how many tokens each
    drafts, from 0 to its lane's longest; a draft may look at rows beyond its text's end, which are other texts', or
    not there, and must not. memory: a lane's before its first round, (width,). remember: of memories (n, width) and
    what came of the rounds, makes the next memories.
    """

    columns: tuple[str, ...]
    lengths: Callable[[Begins], Array]
    memory: tuple[float, ...] = ()
    remember: Callable[[Array, Verified], Array] = lambda memory, verified: memory


@dataclass(frozen=True)
class Rounds:
    """One round of n lanes, (n,) each. lanes: their numbers. differs: accepted tokens that are not the text's."""

    lanes: Array
    begins: Begins
    verified: Verified
    differs: Array


def lay(case: Case, block: Block, lanes: Lanes, policy: RoundPolicy) -> Iterator[Rounds]:
    """All rounds: first the first one of each lane, then the second ones, until every lane's text is at its end.

    Raises:
        UsageError: the policy gave what is no length.
    """
    decides = Decides(case, block)
    numbers, rows = np.arange(len(lanes.starts)), lanes.starts
    memory = np.tile(np.asarray(policy.memory, np.float64), (len(rows), 1))
    while len(rows):
        begins = Begins(block.columns, case.divergence, lanes, rows, memory)
        verified, differs = decides(begins, _lengths(policy, begins))
        yield Rounds(numbers, begins, verified, differs)
        rows, memory = rows + verified.accepted + 1, policy.remember(memory, verified)
        on = rows < lanes.ends
        numbers, rows, memory, lanes = numbers[on], rows[on], memory[on], lanes.taken(on)


def walk_rounds(case: Case, block: Block, policy: RoundPolicy, ks: Array, lengths: Array) -> Walk:
    """As `lockstep.walk`."""
    lanes = lanes_of(block, case.thresholds[ks], lengths)
    counted = np.zeros((3, len(lanes.starts)), np.int64)
    for first in range(0, len(lanes.starts), _LANES):
        part = slice(first, first + _LANES)
        for laid in lay(case, block, lanes.taken(part), policy):
            counts = np.ones_like(laid.lanes), laid.verified.drafted, laid.differs
            counted[:, part][:, laid.lanes] += np.stack(counts)
    return Walk(*counted.reshape(3, len(ks), len(lengths), len(block.starts)))


def lanes_of(block: Block, thresholds: Array, lengths: Array) -> Lanes:
    """Every completion at every threshold with every length; completions fastest, thresholds slowest."""
    of_threshold, of_length, of_text = (
        number.ravel() for number in np.indices((len(thresholds), len(lengths), len(block.starts)))
    )
    return Lanes(block.starts[of_text], block.ends[of_text], thresholds[of_threshold], lengths[of_length])


class Decides:
    """What a case's rule makes of drafts over a block."""

    def __init__(self, case: Case, block: Block) -> None:
        columns, none = block.columns, np.zeros(block.rows, bool)
        self._exact = none if case.exact is None else columns[case.exact]
        self._differs = ~columns["same_token"] & ~self._exact
        self._scores = np.full(block.rows, np.nan)
        if REPLAYABLE[case.rule].fuzzy and case.divergence is not None:
            d = columns[case.divergence].astype(np.float64)
            self._scores = np.where(np.isfinite(d), d, np.nan)  # as in decoding: no T accepts the others

    def accepts(self, rows: Array, thresholds: Array) -> Array:
        """Of tokens drafted at rows (n,), at thresholds (n,): (n,) bool."""
        return np.asarray(self._exact[rows] | (self._scores[rows] <= thresholds))

    def __call__(self, begins: Begins, drafted: Array) -> tuple[Verified, Array]:
        """What came of the drafts, and how many accepted tokens are not the text's: (n,)."""
        lanes, n = begins.lanes, len(drafted)
        until = np.minimum(begins.rows + drafted, lanes.ends)
        accepted, differs, spared = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, np.nan)
        going = np.arange(n)
        while len(going := going[begins.rows[going] + accepted[going] < until[going]]):
            rows = begins.rows[going] + accepted[going]
            kept = self.accepts(rows, lanes.thresholds[going])
            going, rows = going[kept], rows[kept]
            alone = np.where(self._exact[rows], np.nan, self._scores[rows])
            spared[going] = np.fmax(spared[going], alone)
            differs[going] += self._differs[rows]
            accepted[going] += 1
        rejected = begins.rows + accepted
        refused = np.where(rejected < until, self._scores[np.minimum(rejected, lanes.ends - 1)], np.nan)
        return Verified(drafted, accepted, spared, refused), differs


def _lengths(policy: RoundPolicy, begins: Begins) -> Array:
    given, most = np.asarray(policy.lengths(begins)), begins.lanes.most
    whole = given.shape == most.shape and np.issubdtype(given.dtype, np.integer)
    if not whole or (given < 0).any() or (given > most).any():
        raise UsageError(
            f"the round policy gave {given.dtype} of shape {given.shape}; it must give a whole number a round, from 0 "
            f"to its lane's longest: {most.shape}"
        )
    return given.astype(np.int64)
