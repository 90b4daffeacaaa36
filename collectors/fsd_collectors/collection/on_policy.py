"""Traces of decoding itself: an observer that keeps every drafted token, and what became of it.

Knows rounds. Holds their logits back until there are enough to work on at once. Knows nothing of files or tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_collectors.collection.hidden_states import HiddenStates
from fsd_collectors.collection.measures import Measures, Positions, Shipment, chunk_size
from fsd_decoding.observers.round_record import RoundRecord

Array = NDArray[Any]


@dataclass(frozen=True)
class _Seen:
    """What the host knows of a round as it passes."""

    owners: list[int]  # by row: the index of its prompt, -1 where the row is empty
    drafts: int  # L
    draft_seconds: float
    verify_seconds: float


class _Held(NamedTuple):
    """What the device knows of a round: B rows, L drafts. Whole tensors: slicing is left to when there are enough."""

    target_logits: Tensor  # (B, L + 1, V)
    draft_logits: Tensor  # (B, L, V)
    drafted: Tensor  # (B, L)
    choice: Tensor  # (B, L + 1)
    positions: Tensor  # (B, L + 1)
    keys: Tensor  # (B, 2)
    proposed: Tensor  # (B,)
    accepted: Tensor  # (B,)

    @classmethod
    def of(cls, round_: RoundRecord) -> _Held:
        proposal = round_.proposal
        logits = proposal.target_logits, proposal.draft_logits
        tokens = proposal.drafted, proposal.target_choice, proposal.positions
        # The keys are the engine's own, which it writes to.
        return cls(*logits, *tokens, proposal.keys.clone(), round_.drafted, round_.accepted)


class OnPolicy:
    """Give it to `generate` as `observer`; once that is done, ask what was `collected`.

    Holds logits of about as many positions as `measures` works on at once, and of every token what was measured.
    """

    def __init__(self, measures: Measures, states: HiddenStates | None = None) -> None:
        self._measures, self._states = measures, states
        self._seen: list[_Seen] = []
        self._held: list[_Held] = []
        self._held_states: list[Tensor] = []
        self._measured, self._counted, self._states_kept = Shipment(), Shipment(), Shipment()

    def __call__(self, round_: RoundRecord) -> None:
        drafts = round_.proposal.drafted.shape[1]
        if self._held and self._held[0].drafted.shape[1] != drafts:
            self._work_off()
        owners = [request.index if request else -1 for request in round_.requests]
        self._seen.append(_Seen(owners, drafts, round_.draft_seconds, round_.verify_seconds))
        self._held.append(_Held.of(round_))
        if self._states is not None:
            self._held_states.append(self._states.latest(drafts))
        if sum(held.draft_logits.numel() for held in self._held) >= chunk_size(self._held[0].draft_logits):
            self._work_off()

    def _work_off(self) -> None:
        held = _Held(*map(_joined, zip(*self._held, strict=True)))
        self._held.clear()
        self._measured.send(self._measures(_positions(held)))
        self._counted.send(torch.stack([held.proposed, held.accepted, held.positions[:, 0]], 1))
        if self._states is not None:
            self._states_kept.send(_joined(self._held_states).flatten(0, 1))
            self._held_states.clear()

    def collected(self) -> tuple[Rounds, Drafted]:
        """What was seen; waits for the device."""
        if self._held:
            self._work_off()
        rounds, first = Rounds.of(self._seen, np.concatenate([t.numpy() for t in self._counted.received()]))
        measured = np.concatenate([t.numpy() for t in self._measured.received()], 1)
        states = [t.numpy() for t in self._states_kept.received()]
        return rounds, Drafted.of(rounds.proposed, first, measured, np.concatenate(states) if states else None)


@dataclass(frozen=True)
class Rounds:
    """Rounds of completions: R of them, completion after completion, each one's in order. All are (R,)."""

    owner: Array  # index of the prompt
    number: Array  # of the completion's rounds, from 0
    position: Array  # absolute, of the first token the round brings
    proposed: Array
    accepted: Array  # up to the first rejection
    batch: Array  # completions in this round
    draft_seconds: Array
    verify_seconds: Array

    @classmethod
    def of(cls, seen: Sequence[_Seen], counts: Array) -> tuple[Rounds, Array]:
        """`counts` (rows of all rounds, 3) as `_counts` made them. Also, by round, where its tokens begin: (R,)."""
        owners = np.concatenate([np.asarray(one.owners) for one in seen])
        rows = [len(one.owners) for one in seen]
        drafts = np.repeat([one.drafts for one in seen], rows)
        active = np.flatnonzero(owners >= 0)
        order = active[np.argsort(owners[active], kind="stable")]
        owner = owners[order]
        of_all = np.array([(sum(o >= 0 for o in s.owners), s.draft_seconds, s.verify_seconds) for s in seen])
        batch, draft_seconds, verify_seconds = np.repeat(of_all, rows, axis=0)[order].T
        number = np.arange(len(owner)) - np.searchsorted(owner, owner)
        proposed, accepted, position = counts[order].T
        rounds = cls(owner, number, position, proposed, accepted, batch, draft_seconds, verify_seconds)
        return rounds, (np.cumsum(drafts) - drafts)[order]

    def accepted_back(self, back: int) -> np.ma.MaskedArray[Any, Any]:
        """What was accepted so many rounds ago; masked where the completion had no such round."""
        return np.ma.masked_array(np.roll(self.accepted, back), self.number < back)


@dataclass(frozen=True)
class Drafted:
    """N proposed tokens in the order of `Rounds`."""

    round_: Array  # (N,) its place in `Rounds`
    place: Array  # (N,) its place in the round's draft, from 0
    measured: Array  # (columns, N)
    states: Array | None  # (N, width) fp16

    @classmethod
    def of(cls, proposed: Array, first: Array, measured: Array, states: Array | None) -> Drafted:
        """Of rounds whose tokens begin at `first` (R,) of `measured` and `states`, `proposed` (R,) of them each."""
        round_ = np.repeat(np.arange(len(proposed)), proposed)
        place = np.arange(len(round_)) - (np.cumsum(proposed) - proposed)[round_]
        at = first[round_] + place
        return cls(round_, place, measured[:, at], None if states is None else states[at])


def _positions(held: _Held) -> Positions:
    """All B x L positions: which ones count, only the device knows."""
    drafts = held.drafted.shape[1]
    per_position = (
        held.target_logits[:, :drafts],
        held.draft_logits,
        held.drafted,
        held.choice[:, :drafts],
        held.positions[:, :drafts],
        held.keys[:, None].expand(-1, drafts, -1),
    )
    return Positions(*(values.flatten(0, 1) for values in per_position))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
