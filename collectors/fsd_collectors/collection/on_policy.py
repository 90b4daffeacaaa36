"""On-policy traces: an observer of decoding that measures every drafted token and records its rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_collectors.collection.measures import HiddenStates, HostCopies, Measures, Positions, chunk_size
from fsd_decoding.observers.round_record import RoundRecord

Array = NDArray[Any]


class OnPolicy:
    """An observer for `generate`; after decoding, `collect` returns the recorded rounds and tokens.

    It holds the logits of about as many positions as `measures` processes at once, and the columns of every token.

    Args:
        measures: columns to compute.
        states: hidden states of the draft to keep; entered as a context manager.
    """

    def __init__(self, measures: Measures, states: HiddenStates | None = None) -> None:
        self._measures, self._states = measures, states
        self._records: list[tuple[list[int], int, float, float]] = []  # as `Rounds.of` takes them
        self._held: list[tuple[Tensor, ...]] = []  # of each round what `_measure_held` reads, for many rounds at once
        self._held_states: list[Tensor] = []
        self._measured, self._counted, self._states_kept = HostCopies(), HostCopies(), HostCopies()

    def __call__(self, round_: RoundRecord) -> None:
        proposal, length = round_.proposal, round_.proposal.drafted.shape[1]
        if self._held and self._held[0][1].shape[1] != length:
            self._measure_held()
        owners = [request.index if request else -1 for request in round_.requests]
        self._records.append((owners, length, round_.draft_seconds, round_.verify_seconds))
        keys = proposal.keys.clone()  # the engine reuses their tensor
        logits = proposal.target_logits, proposal.draft_logits
        tokens = proposal.drafted, proposal.target_choice, proposal.positions
        seen = proposal.seen("raw")
        assert seen.before is not None
        assert seen.places is not None
        context = seen.before(), seen.places(), *(() if seen.past is None else (seen.past(),))
        self._held.append((*logits, *tokens, keys, round_.drafted, round_.accepted, *context))
        if self._states is not None and length:
            self._held_states.append(self._states.latest(length))
        if sum(draft_logits.numel() for _, draft_logits, *_ in self._held) >= chunk_size(proposal.draft_logits):
            self._measure_held()

    def _measure_held(self) -> None:
        """Measures all B x L positions, the padding of shorter drafts included: only the device knows their lengths."""
        joined = map(_joined, zip(*self._held, strict=True))
        target_logits, draft_logits, drafted, choice, positions, keys, proposed, accepted, *context = joined
        self._held.clear()
        length = drafted.shape[1]
        at = (target_logits[:, :length], draft_logits, drafted, choice[:, :length], positions[:, :length],
              keys[:, None].expand(-1, length, -1), *context)  # fmt: skip
        self._measured.send(self._measures(Positions(*(values.flatten(0, 1) for values in at))))
        self._counted.send(torch.stack([proposed, accepted, positions[:, 0]], 1))
        if self._held_states:
            self._states_kept.send(_joined(self._held_states).flatten(0, 1))
            self._held_states.clear()

    def collect(self) -> tuple[Rounds, DraftedTokens]:
        """Waits for the device and returns all rounds and drafted tokens."""
        if self._held:
            self._measure_held()
        rounds, first = Rounds.of(self._records, np.concatenate([t.numpy() for t in self._counted.wait()]))
        measured = np.concatenate([t.numpy() for t in self._measured.wait()], 1)
        states = [t.numpy() for t in self._states_kept.wait()]
        return rounds, DraftedTokens.of(rounds.proposed, first, measured, np.concatenate(states) if states else None)


@dataclass(frozen=True)
class Drafts:
    """The drafts of R rounds, ordered by completion and round; all columns are (R,)."""

    owner: Array  # index of the prompt
    number: Array  # number of the round in its completion, from 0
    position: Array  # absolute position of the round's first token
    proposed: Array  # drafted tokens
    accepted: Array  # of them, those up to the first rejection

    def accepted_back(self, back: int) -> np.ma.MaskedArray[Any, Any]:
        """Returns the tokens accepted `back` rounds earlier; masked where the completion had no such round."""
        return np.ma.masked_array(np.roll(self.accepted, back), self.number < back)


@dataclass(frozen=True)
class Rounds(Drafts):
    """R rounds of the engine."""

    batch: Array  # number of completions in the round
    draft_seconds: Array
    verify_seconds: Array

    @classmethod
    def of(cls, records: Sequence[tuple[list[int], int, float, float]], counts: Array) -> tuple[Rounds, Array]:
        """Builds the rounds from what host and device know of them.

        Args:
            records: by round of the engine: the index of each row's prompt, -1 where the row is empty; L; and the
                seconds of the draft phase and of the verification.
            counts: (rows of all records, 3) drafted tokens, accepted tokens and position.

        Returns:
            The rounds, and for each the index of its first token among the measured ones, (R,).
        """
        rows = [len(owners) for owners, *_ in records]
        owners = np.concatenate([owners for owners, *_ in records])
        padded = np.repeat([length for _, length, *_ in records], rows)
        active = np.flatnonzero(owners >= 0)
        order = active[np.argsort(owners[active], kind="stable")]
        owner = owners[order]
        shared = [(sum(owner >= 0 for owner in whose), *seconds) for whose, _, *seconds in records]
        batch, draft_seconds, verify_seconds = np.repeat(np.array(shared), rows, axis=0)[order].T
        number = np.arange(len(owner)) - np.searchsorted(owner, owner)
        proposed, accepted, position = counts[order].T
        rounds = cls(owner, number, position, proposed, accepted, batch, draft_seconds, verify_seconds)
        return rounds, (np.cumsum(padded) - padded)[order]


@dataclass(frozen=True)
class DraftedTokens:
    """N drafted tokens in the order of `Drafts`."""

    round_: Array  # (N,) index of its round
    place: Array  # (N,) position in the round's draft, from 0
    measured: Array  # (columns, N)
    states: Array | None  # (N, width) fp16

    @classmethod
    def of(cls, proposed: Array, first: Array, measured: Array, states: Array | None) -> DraftedTokens:
        """Selects the tokens of R rounds from padded columns.

        Args:
            proposed: (R,) drafted tokens of each round.
            first: (R,) index of each round's first token in `measured` and `states`.
        """
        round_ = np.repeat(np.arange(len(proposed)), proposed)
        place = np.arange(len(round_)) - (np.cumsum(proposed) - proposed)[round_]
        at = first[round_] + place
        return cls(round_, place, measured[:, at], None if states is None else states[at])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
