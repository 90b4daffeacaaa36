"""Threshold policies: who says which T a round is judged by.

Knows what a policy is asked, what it is told, and what it may answer. Knows no policy in particular; who asks is
`adapting.py`. DESIGN section 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsd_decoding.acceptance.proposal import Proposal, Verdict
from fsd_decoding.batch import Request
from fsd_decoding.divergence import entropy
from fsd_decoding.errors import UsageError
from fsd_decoding.tensors import lazy

# MERGED: """What a threshold policy keeps of each text being decoded.
#
# Knows columns, one entry a row, that follow the rows of a batch. Knows nothing of what they mean.
# """


class RowMemory:
    """Columns (B,) float64 on the batch's device, by name. A row's entries begin anew with each text."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows, self._device = rows, device
        self._columns: dict[str, Tensor] = {}
        self._fills: dict[str, float] = {}
        self._parts: dict[str, RowMemory] = {}

    def column(self, name: str, fill: float = 0.0) -> Tensor:
        """To be read, and changed in place; `fill` is what every text begins with, as first asked."""
        if name not in self._columns:
            self._fills[name] = fill
            self._columns[name] = torch.full((self._rows,), fill, dtype=torch.float64, device=self._device)
        return self._columns[name]

    def part(self, name: str) -> RowMemory:
        """That of a policy within a policy: of the same rows, with columns of its own."""
        if name not in self._parts:
            self._parts[name] = RowMemory(self._rows, self._device)
        return self._parts[name]

    def forget(self, rows: Tensor) -> None:
        """Other texts begin in `rows` (R,)."""
        for name, column in self._columns.items():
            column[rows] = self._fills[name]
        for part in self._parts.values():
            part.forget(rows)

    def keep(self, rows: Tensor) -> None:
        """Gives up all rows but these (R,), which are numbered anew in this order."""
        self._rows = len(rows)
        self._columns = {name: column[rows] for name, column in self._columns.items()}
        for part in self._parts.values():
            part.keep(rows)


Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Begun:
    """Texts that begin, and the rows of the batch that they get."""

    rows: Tensor  # (R,)
    requests: Sequence[Request]  # R
    memory: RowMemory
    first: bool  # none came before them in this call of the decoder


@dataclass
class RoundState:
    """A round before it is judged, on the device. What it holds of empty rows is rubbish."""

    proposal: Proposal  # its `thresholds` are the T that each prompt was given: (B,)
    drafted: Tensor  # (B,) tokens proposed
    begins: Tensor  # (B,) length of each prompt
    memory: RowMemory
    own: float | None = None  # T of the policy that is asked, where it is part of another

    @lazy
    def base(self) -> Tensor:
        """The T that each prompt was given, as the policy that is asked may see it: (B,) float64."""
        given = self.proposal.thresholds
        return given if self.own is None else torch.full_like(given, self.own)

    @lazy
    def emitted(self) -> Tensor:
        """New tokens that each text has: (B,)."""
        return self.proposal.positions[:, 0] - self.begins

    @lazy
    def places(self) -> Tensor:
        """Of the drafted tokens in their completions, from 0: (B, L)."""
        return self.proposal.positions[:, :-1] - self.begins[:, None]

    @lazy
    def proposed(self) -> Tensor:
        """Which of the L places hold a token: (B, L) bool."""
        span = torch.arange(self.proposal.drafted.shape[1], device=self.drafted.device)
        return span < self.drafted[:, None]

    @lazy
    def target_entropy(self) -> Tensor:
        """Of p, raw, in nats: (B, L)."""
        return entropy(self.proposal.target_logits[:, :-1])

    @lazy
    def draft_entropy(self) -> Tensor:
        """Of q, raw, in nats: (B, L)."""
        return entropy(self.proposal.draft_logits)


@dataclass
class RoundOutcome:
    """What came of a round."""

    state: RoundState
    thresholds: Tensor  # (B, 1) or (B, L) T that the round was judged by
    verdict: Verdict
    accepted: Tensor  # (B,) drafted tokens up to the first rejection
    kept: Tensor  # (B,) tokens that the texts got; 0 for empty rows. A text may end before its round does

    @lazy
    def decided(self) -> Tensor:
        """Drafted tokens that were accepted, and the first rejected: (B, L) bool. None of empty rows."""
        first = torch.minimum(self.accepted + 1, self.state.drafted)
        return self._span < torch.where(self.kept > 0, first, 0)[:, None]

    @lazy
    def substituted(self) -> Tensor:
        """Tokens in the texts that the divergence alone put there: (B, L) bool."""
        stays = self._span < torch.minimum(self.accepted, self.kept)[:, None]
        by_score = self.verdict.by_score
        return stays & self.verdict.accepted if by_score is None else stays & self.verdict.accepted & by_score

    @lazy
    def divergences(self) -> Tensor:
        """D of the drafted tokens: (B, L), finite where substituted."""
        return self.state.proposal.divergences

    @property
    def _span(self) -> Tensor:
        return torch.arange(self.state.proposal.drafted.shape[1], device=self.accepted.device)


class ThresholdPolicy:
    """Which T a round is judged by, row by row or token by token. Subclass it and answer in `thresholds`.

    State that belongs to a text is kept in `memory`, by row; what outlives texts is the policy's own, and what
    `state_dict` saves. A policy works on device tensors and reads none of them: it would wait for the device.

    threshold: the T that prompts are given under it. identity: what a cache of texts and a profile know it by; None:
    nothing, so no text is kept. budget: it holds one, which no second policy may do at the same time.
    """

    threshold: float = 0.0
    identity: str | None = None
    budget = False

    def start(self, begun: Begun) -> None:
        """Told of texts before their first round."""

    def thresholds(self, state: RoundState) -> Tensor:
        """T of a round: (B,), one a row, or (B, L), one a drafted token; float, on the device, never NaN."""
        raise NotImplementedError

    @property
    def listens(self) -> bool:
        """Whether it is told of rounds: if it has an `observe` of its own. What nobody asks for takes no time."""
        return type(self).observe is not ThresholdPolicy.observe

    def observe(self, outcome: RoundOutcome) -> None:
        """Told what came of a round, if it listens."""

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, divergence: str) -> None:
        """UsageError: it is of other models, or of another rule or divergence."""

    def doubts(self) -> list[str]:
        """What a caller should be warned of, once it is told; asked when a call of the decoder ends."""
        return []

    def facts(self) -> dict[str, float | Tensor]:
        """What it goes by in this round, for whoever watches: names, with their units as in "round (s)", and plain
        numbers or tensors () on the device. Asked once a round, after `thresholds`, if anybody does watch."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What it has learned, as plain numbers, lists and tensors; a policy that learns nothing has none."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken. UsageError: the state is of another policy."""
        if state:
            raise UsageError(
                f"{type(self).__name__} keeps no state, this one holds {', '.join(state)}; it is another's"
            )


class ScalePolicy(ThresholdPolicy):
    """Loosens and tightens the T that a prompt was given: T times a scale, which itself never looks at T.

    So D <= T·m is D/m <= T, and a text answers for an interval of T as it does under a constant one, and T may be
    searched for as if it were constant. For that the scale must follow from the row's own text and logits: not from
    other rows, from time, or from what was accepted in earlier texts.

    least: no scale above 0 is smaller. steepness: how much further the logarithm of a scale may move, by rounding,
    than square roots of divergences do; 0 where it follows from tokens alone. How near to an interval's ends another
    T may lie depends on both. columns: of traces, what `traced` reads.
    """

    least: float = 1.0
    steepness: float = 0.0
    columns: tuple[str, ...] = ()

    def scales(self, state: RoundState) -> Tensor:
        """(B,), one a row, or (B, L), one a drafted token: float, 0 or more, on the device."""
        raise NotImplementedError

    def traced(self, columns: Mapping[str, Array]) -> Array:
        """The same along a trace, for replay: (n,) each -> (n,), rows in order, whole completions."""
        raise NotImplementedError

    def at(self, threshold: float) -> Self:
        """The same scales of another T."""
        made = copy(self)
        object.__setattr__(made, "threshold", threshold)  # policies may be frozen
        return made

    def thresholds(self, state: RoundState) -> Tensor:
        scales = self.scales(state)
        return (state.base if scales.dim() == 1 else state.base[:, None]) * scales


def checked(answer: object, policy: ThresholdPolicy, state: RoundState) -> Tensor:
    """The answer as (B, 1) or (B, L) float64. UsageError: it is of another shape or kind.

    Whether it holds NaN is seen where the round's results are read anyway.
    """
    rows, drafts = state.proposal.drafted.shape
    shapes = ((rows,), (rows, drafts))
    if isinstance(answer, Tensor) and answer.is_floating_point() and tuple(answer.shape) in shapes:
        return answer.double().reshape(rows, -1) if answer.dim() == 1 else answer.double()
    told = f"a {answer.dtype} tensor of shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else repr(answer)
    shown = " ".join(told.split())
    raise UsageError(
        f"the threshold policy {type(policy).__name__} answered {shown:.80}; it must give a float tensor of shape "
        f"({rows},), one a row, or ({rows}, {drafts}), one a drafted token"
    )
