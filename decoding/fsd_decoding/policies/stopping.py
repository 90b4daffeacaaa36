"""Stop policies: who says how far rows draft.

Knows what a policy is asked and what it may answer. Knows no drafter; who asks is `drafting.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fsd_decoding.batch import Batch, Request
from fsd_decoding.errors import UsageError
from fsd_decoding.tensors import lazy, to_device

Answer = Tensor | Sequence[bool]
"""One truth value a row: (B,) bool, on any device, or a list."""


class RowFacts(Protocol):
    """What the host knows of a row."""

    request: Request
    tokens: list[int]  # new ones, before this round
    memory: Any  # what `remember` made of its rounds so far; None before the first


@dataclass
class DraftState:
    """What a stop policy may know: everything but the target's opinion of this round.

    Its tensors are this round's: take copies of what you keep.
    """

    batch: Batch
    logits: list[Tensor]  # one (B, 1, V) a token drafted so far in this round, raw
    rows: Sequence[RowFacts | None]  # None: the row is empty
    going: list[bool]  # rows that have not stopped

    @lazy
    def drafting(self) -> Tensor:
        """The same on the batch's device: (B,) bool."""
        return to_device(self.going, self.batch.lengths.device)


@dataclass(frozen=True)
class Verified:
    """What came of one row's draft.

    spared: the largest divergence that alone kept a token; refused: the one that rejected one. None: none did.
    """

    drafted: int
    accepted: int
    spared: float | None
    refused: float | None


class StopPolicy:
    """How far to draft. Subclass it, or give a function that answers as `goes_on` does.

    identity: what a cache of texts knows it by; None: nothing, so none keeps them. reads_threshold: T has a say, so a
    text answers for its own T alone and no interval around it. rules: those whose drafts it ends; None: all. looks: it
    reads tensors, so on CUDA it is asked while the next step is under way. watches: it sees the draft's forwards
    themselves, which so run one by one as it asks for them, and in no graph.
    """

    identity: str | None = None
    reads_threshold: bool = False
    rules: frozenset[str] | None = None
    looks: bool = True
    watches: bool = False

    def goes_on(self, state: DraftState) -> Answer:
        """Asked before each draft step: the rows that shall draft one more token. One that stopped stays stopped."""
        raise NotImplementedError

    def withholds(self, state: DraftState) -> Answer | None:
        """Asked after each draft step: the rows whose last token shall stay unverified, and that so stop; None: none.

        It may look at the logits that the token was drawn from, never at the token: leaving tokens out for what they
        are would change the distribution of what is emitted.
        """
        return None

    def remember(self, memory: Any, verified: Verified) -> Any:
        """What a row keeps of its rounds, from what it kept before (None at first) and its latest."""
        return None


class FunctionStopPolicy(StopPolicy):
    """A function as a policy."""

    def __init__(self, goes_on: Callable[[DraftState], Answer]) -> None:
        self._function = goes_on

    def goes_on(self, state: DraftState) -> Answer:
        return self._function(state)


def as_policy(given: StopPolicy | Callable[[DraftState], Answer]) -> StopPolicy:
    """UsageError: it is neither a policy nor a function."""
    if isinstance(given, StopPolicy):
        return given
    if not callable(given):
        raise UsageError(f"policy is {given!r:.80}; it must be a StopPolicy, or a function of a DraftState")
    return FunctionStopPolicy(given)


def answered(answer: object, rows: int) -> Sequence[bool]:
    """The answer on the host, one truth value a row. UsageError: it is none."""
    if isinstance(answer, Tensor) and answer.dtype == torch.bool and answer.shape == (rows,):
        told: list[bool] = answer.tolist()
        return told
    if isinstance(answer, list) and len(answer) == rows and all(isinstance(one, bool) for one in answer):
        return answer
    shown = " ".join(repr(answer).split())  # a tensor's would take lines
    raise UsageError(f"the policy answered {shown:.80}; it must give a bool tensor of shape ({rows},), one a row")
