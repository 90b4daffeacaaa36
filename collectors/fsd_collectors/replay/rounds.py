"""Simulation of rounds over completions, under policies that depend on the text's earlier rounds.

Policies that depend only on the rows ahead are counted faster by `counting.count_in_lockstep`.

A lane is one completion at one threshold with one largest draft length. All lanes advance together, a round at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from fsd_collectors.replay.blocks import Array, Block
from fsd_collectors.replay.cases import Case, scores_of_rows
from fsd_collectors.replay.counting import checked_lengths

_LANES = 1 << 16  # lanes that are counted at once: a policy reads some hundred bytes of each


@dataclass(frozen=True)
class Lanes:
    """n lanes, all columns (n,)."""

    starts: Array  # row where its completion begins
    ends: Array  # row after its last
    thresholds: Array  # float64; ignored by rules without a threshold
    most: Array  # largest draft length

    def select(self, which: Array | slice) -> Self:
        return type(self)(*(getattr(self, field.name)[which] for field in fields(self)))


@dataclass(frozen=True)
class RoundStarts:
    """The starts of the next rounds of n lanes, which is what a policy may read."""

    columns: Mapping[str, Array]  # of all rows; always with `position`, counted from 0 in each completion
    score: str | None
    lanes: Lanes
    rows: Array  # (n,) rows of the rounds' first tokens
    memory: Array  # (n, width) float64, what the policy keeps of the lanes' earlier rounds

    def select(self, which: Array) -> Self:
        return replace(self, lanes=self.lanes.select(which), rows=self.rows[which], memory=self.memory[which])


@dataclass(frozen=True)
class Verified:
    """Outcomes of n rounds, (n,) each; see `fsd_decoding.policies.stopping.Verified` for a single one.

    Args:
        drafted: drafted tokens.
        accepted: accepted tokens; those after the end of a text do not count.
        largest_accepted: largest score of a token that only D <= T accepted; NaN where there was none.
        smallest_rejected: score of the rejected token; NaN where there was none.
    """

    drafted: Array
    accepted: Array
    largest_accepted: Array
    smallest_rejected: Array


@dataclass(frozen=True)
class RoundPolicy:
    """Decides draft lengths from the rows ahead and from the outcomes of earlier rounds.

    Args:
        columns: columns of the traces that `lengths` reads.
        lengths: receives the starts of n rounds and returns their draft lengths (n,), from 0 to the lane's largest. It
            must not read rows at or beyond `lanes.ends`: they belong to other texts or do not exist.
        memory: (width,) memory of a lane before its first round.
        remember: receives memories (n, width) and the outcomes of the rounds, and returns the next memories.
    """

    columns: tuple[str, ...]
    lengths: Callable[[RoundStarts], Array]
    memory: tuple[float, ...] = ()
    remember: Callable[[Array, Verified], Array] = lambda memory, verified: memory


@dataclass(frozen=True)
class Rounds:
    """One round of n lanes: their indices (n,), the starts, the outcomes, and the number of substitutions (n,)."""

    lanes: Array
    starts: RoundStarts
    verified: Verified
    differs: Array


def simulate_rounds(case: Case, block: Block, lanes: Lanes, policy: RoundPolicy) -> Iterator[Rounds]:
    """Yields the rounds of all lanes: the first round of each, then the second, until every text is at its end.

    Raises:
        UsageError: the policy returned something else than draft lengths.
    """
    verify = DraftVerifier(case, block)
    numbers, rows = np.arange(len(lanes.starts)), lanes.starts
    memory = np.tile(np.asarray(policy.memory, np.float64), (len(rows), 1))
    while len(rows):
        starts = RoundStarts(block.columns, case.score, lanes, rows, memory)
        drafted = checked_lengths(policy.lengths(starts), lanes.most, len(rows), "round").astype(np.int64)
        verified, differs = verify(starts, drafted)
        yield Rounds(numbers, starts, verified, differs)
        rows, memory = rows + verified.accepted + 1, policy.remember(memory, verified)
        on = rows < lanes.ends
        numbers, rows, memory, lanes = numbers[on], rows[on], memory[on], lanes.select(on)


def count_with_policy(case: Case, block: Block, policy: RoundPolicy, ks: Array, lengths: Array) -> Array:
    """Counts rounds under a policy; the arguments and the result are those of `counting.count_in_lockstep`."""
    lanes = lanes_of(block, case.thresholds[ks], lengths)
    counted = np.zeros((3, len(lanes.starts)), np.int64)
    for first in range(0, len(lanes.starts), _LANES):
        part = slice(first, first + _LANES)
        for rounds in simulate_rounds(case, block, lanes.select(part), policy):
            counts = np.ones_like(rounds.lanes), rounds.verified.drafted, rounds.differs
            counted[:, part][:, rounds.lanes] += np.stack(counts)
    return counted.reshape(3, len(ks), len(lengths), len(block.starts))


def lanes_of(block: Block, thresholds: Array, lengths: Array) -> Lanes:
    """Returns a lane for every threshold, draft length and completion; completions vary fastest."""
    of_threshold, of_length, of_text = (
        number.ravel() for number in np.indices((len(thresholds), len(lengths), len(block.starts)))
    )
    return Lanes(block.starts[of_text], block.ends[of_text], thresholds[of_threshold], lengths[of_length])


class DraftVerifier:
    """Applies a case's rule to drafts over a block."""

    def __init__(self, case: Case, block: Block) -> None:
        columns, none = block.columns, np.zeros(block.rows, bool)
        self._window = case.window
        self._exact = none if case.exact is None else columns[case.exact]
        self._differs = ~columns["same_token"] & ~self._exact
        self._scores = np.full(block.rows, np.nan)
        if case.score is not None:
            d = scores_of_rows(case, block).astype(np.float64)
            self._scores = np.where(np.isfinite(d), d, np.nan)  # as in decoding, no T accepts an infinite score

    def accepts(self, rows: Array, thresholds: Array, after: Array | float = np.inf) -> Array:
        """Returns a mask (n,) of the drafted tokens at rows (n,) that are accepted at thresholds (n,).

        Args:
            after: (n,) how many tokens were drafted after each.
        """
        return np.asarray(self._exact[rows] | (self._scores[rows] <= thresholds) & (after >= self._window))

    def __call__(self, starts: RoundStarts, drafted: Array) -> tuple[Verified, Array]:
        """Returns the outcomes of drafts of these lengths (n,), and the number of substitutions (n,)."""
        lanes, n = starts.lanes, len(drafted)
        until = np.minimum(starts.rows + drafted, lanes.ends)
        accepted, differs, largest_accepted = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, np.nan)
        going = np.arange(n)
        while len(going := going[starts.rows[going] + accepted[going] < until[going]]):
            rows = starts.rows[going] + accepted[going]
            kept = self.accepts(rows, lanes.thresholds[going], drafted[going] - accepted[going] - 1)
            going, rows = going[kept], rows[kept]
            only_fuzzy = np.where(self._exact[rows], np.nan, self._scores[rows])
            largest_accepted[going] = np.fmax(largest_accepted[going], only_fuzzy)
            differs[going] += self._differs[rows]
            accepted[going] += 1
        rejected = starts.rows + accepted
        by_score = (rejected < until) & (drafted - accepted > self._window)
        smallest_rejected = np.where(by_score, self._scores[np.minimum(rejected, lanes.ends - 1)], np.nan)
        return Verified(drafted, accepted, largest_accepted, smallest_rejected), differs
