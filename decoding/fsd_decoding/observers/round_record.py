"""What a round knows, for whoever wants to watch.

Knows how a `Proposal` and its `Verdict` are described. Everything stays on the device and is computed when it
is asked for; without an observer nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding.acceptance.proposal import Proposal, Verdict
from fsd_decoding.acceptance.rules import Rule
from fsd_decoding.batch import Request
from fsd_decoding.divergence import entropy, log_softmax, unchecked_divergences
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.tensors import lazy, to_device


@dataclass
class RoundRecord:
    """One round of B rows with up to L drafted tokens each."""

    requests: Sequence[Request | None]  # by row; None: the row is empty and what it holds is rubbish
    proposal: Proposal
    verdict: Verdict
    drafted: Tensor  # (B,) tokens proposed
    accepted: Tensor  # (B,) of them, up to the first rejection
    draft_seconds: float  # on the host's clock: on CUDA what it took to launch
    verify_seconds: float  # where all rows are new, reading their prompts included
    rule: Rule
    adaptive: ThresholdPolicy | None  # who moves T

    @property
    def thresholds(self) -> Tensor:
        """T that every drafted token was held against: (B, L)."""
        return self.proposal.bounds.expand(self.proposal.drafted.shape)

    @lazy
    def active(self) -> Tensor:
        """(B,) bool: rows with a request."""
        return to_device([request is not None for request in self.requests], self.drafted.device)

    @property
    def proposed(self) -> Tensor:
        """(B, L) bool: tokens that rows with a request proposed."""
        return self._first(self.drafted)

    @property
    def decided(self) -> Tensor:
        """(B, L) bool: the accepted tokens and the first rejected one."""
        return self._first(torch.minimum(self.accepted + 1, self.drafted))

    def _first(self, counts: Tensor) -> Tensor:
        span = torch.arange(self.proposal.drafted.shape[1], device=counts.device)
        return (span < counts[:, None]) & self.active[:, None]

    def divergences(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Each named divergence on raw logits: (B, L)."""
        return unchecked_divergences(names, *self._drafted_logits)

    def entropies(self) -> tuple[Tensor, Tensor]:
        """Of p and of q, on raw logits, in nats: (B, L) each."""
        return entropy(self._drafted_logits[0]), entropy(self._drafted_logits[1])

    def top_probabilities(self, k: int = 2) -> tuple[Tensor, Tensor]:
        """The k largest probabilities of p and of q, falling: (B, L, k) each."""
        p, q = (log_softmax(logits).topk(k, -1).values.exp() for logits in self._drafted_logits)
        return p, q

    def ranks(self) -> tuple[Tensor, Tensor]:
        """How many tokens p and q hold likelier than the drafted one: (B, L) each."""
        x = self.proposal.drafted.unsqueeze(-1)
        p, q = ((logits > logits.gather(-1, x)).sum(-1) for logits in self._drafted_logits)
        return p, q

    @property
    def _drafted_logits(self) -> tuple[Tensor, Tensor]:
        """The target's and the draft's where a token was drafted: (B, L, V) each."""
        return self.proposal.target_logits[:, :-1], self.proposal.draft_logits


Observer = Callable[[RoundRecord], None]
"""Called once a round, before the host has seen it. Logits, drafted tokens and what comes of them are the round's
own and may be kept; `proposal.tokens`, `keys` and `thresholds` are the engine's, and change with the next round."""


def together(*observers: Observer) -> Observer:
    """One that shows every round to all of them, in this order."""

    def look(record: RoundRecord) -> None:
        for observer in observers:
            observer(record)

    return look
