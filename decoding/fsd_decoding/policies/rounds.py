"""What a threshold policy sees of the texts being decoded: new requests, rounds before and after they are judged, and a
memory of its own for every row of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding.acceptance.proposal import Proposal, Verdict
from fsd_decoding.batch import Request
from fsd_decoding.divergence import entropy
from fsd_decoding.tensors import lazy


class RowMemory:
    """Named columns, (B,) float64 on the batch's device, that follow the rows of a batch.

    A row's entries are reset when a new text begins in it.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows, self._device = rows, device
        self._columns: dict[str, Tensor] = {}
        self._fills: dict[str, float] = {}
        self._parts: dict[str, RowMemory] = {}

    def column(self, name: str, fill: float = 0.0) -> Tensor:
        """Returns a column, which may be changed in place. Every text begins with `fill`, as of the first call."""
        if name not in self._columns:
            self._fills[name] = fill
            self._columns[name] = torch.full((self._rows,), fill, dtype=torch.float64, device=self._device)
        return self._columns[name]

    def part(self, name: str) -> RowMemory:
        """Returns the memory of a policy inside a composed policy: the same rows, separate columns."""
        if name not in self._parts:
            self._parts[name] = RowMemory(self._rows, self._device)
        return self._parts[name]

    def forget(self, rows: Tensor) -> None:
        """Resets `rows` (R,), in which new texts begin."""
        for name, column in self._columns.items():
            column[rows] = self._fills[name]
        for part in self._parts.values():
            part.forget(rows)

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but `rows` (R,), which are renumbered in this order."""
        self._rows = len(rows)
        self._columns = {name: column[rows] for name, column in self._columns.items()}
        for part in self._parts.values():
            part.keep(rows)


@dataclass(frozen=True)
class NewRequests:
    """Requests whose decoding begins, and the rows of the batch that they get."""

    rows: Tensor  # (R,)
    requests: Sequence[Request]  # R
    memory: RowMemory
    first: bool  # the first ones of this call of the decoder


@dataclass
class RoundState:
    """A round before it is judged, on the device. Values of empty rows are uninitialised padding."""

    proposal: Proposal  # its `thresholds` (B,) are the T that each prompt was given
    drafted: Tensor  # (B,) number of tokens drafted
    begins: Tensor  # (B,) length of each prompt
    memory: RowMemory
    part_threshold: float | None = None  # T of the policy that receives this state, where it is part of another

    @lazy
    def base(self) -> Tensor:
        """The T that each prompt was given or, inside a composed policy, the part's own T: (B,) float64."""
        thresholds = self.proposal.thresholds
        return thresholds if self.part_threshold is None else torch.full_like(thresholds, self.part_threshold)

    @lazy
    def emitted(self) -> Tensor:
        """Number of new tokens of each text: (B,)."""
        return self.proposal.positions[:, 0] - self.begins

    @lazy
    def places(self) -> Tensor:
        """Positions of the drafted tokens in their completions, from 0: (B, L)."""
        return self.proposal.positions[:, :-1] - self.begins[:, None]

    @lazy
    def proposed(self) -> Tensor:
        """Which of the L draft positions hold a token: (B, L) bool."""
        span = torch.arange(self.proposal.drafted.shape[1], device=self.drafted.device)
        return span < self.drafted[:, None]

    @lazy
    def target_entropy(self) -> Tensor:
        """Entropy of the target's raw distribution p at each drafted token, in nats: (B, L)."""
        return entropy(self.proposal.target_logits[:, :-1])

    @lazy
    def draft_entropy(self) -> Tensor:
        """Entropy of the draft's raw distribution q at each drafted token, in nats: (B, L)."""
        return entropy(self.proposal.draft_logits)


@dataclass
class RoundOutcome:
    """A round after it was judged, on the device."""

    state: RoundState
    thresholds: Tensor  # (B, 1) or (B, L) T that the round was judged by
    verdict: Verdict
    accepted: Tensor  # (B,) drafted tokens up to the first rejection
    kept: Tensor  # (B,) tokens added to the texts; 0 for empty rows. A text may end before its round does

    @lazy
    def decided(self) -> Tensor:
        """The accepted drafted tokens and the first rejected one: (B, L) bool, False in empty rows."""
        first = torch.minimum(self.accepted + 1, self.state.drafted)
        return self._span < torch.where(self.kept > 0, first, 0)[:, None]

    @lazy
    def substituted(self) -> Tensor:
        """Tokens added to the texts that were accepted only because D <= T: (B, L) bool."""
        stays = self._span < torch.minimum(self.accepted, self.kept)[:, None]
        by_score = self.verdict.by_score
        return stays & self.verdict.accepted if by_score is None else stays & self.verdict.accepted & by_score

    @lazy
    def divergences(self) -> Tensor:
        """D of the drafted tokens: (B, L), finite where `substituted`."""
        return self.state.proposal.divergences

    @property
    def _span(self) -> Tensor:
        return torch.arange(self.state.proposal.drafted.shape[1], device=self.accepted.device)
