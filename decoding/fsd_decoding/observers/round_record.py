"""The record of a round that observers receive.

All values are on the device and computed on first use; without an observer nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding.batch import Request
from fsd_decoding.divergence import entropy, log_softmax
from fsd_decoding.observers.stopwatch import Stopwatch
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.proposal import Proposal, Verdict
from fsd_decoding.rules import Rule, rule_named
from fsd_decoding.scores import scores_of
from fsd_decoding.tensors import lazy, to_device
from fsd_decoding.walk import emitted_tokens


@dataclass
class RoundRecord:
    """One round of B rows with up to L drafted tokens each."""

    requests: Sequence[Request | None]  # by row; None: an empty row, whose values are uninitialised padding
    proposal: Proposal
    verdict: Verdict
    drafted: Tensor  # (B,) number of tokens drafted
    accepted: Tensor  # (B,) number of them accepted, up to the first rejection
    clock: Stopwatch  # of the draft phase, then of the verification
    rule: Rule
    adaptive: ThresholdPolicy | None  # the policy that sets T
    trees: Proposal | None = None  # of all drafted nodes, where the rest is of the path alone; None: chains
    nodes: Tensor | None = None  # (B, L + 1) the nodes of each path, see `acceptance.Path`

    @property
    def draft_seconds(self) -> float:
        """What the draft phase took, prompts that the draft read in it included."""
        return self.clock.seconds(0)

    @property
    def verify_seconds(self) -> float:
        """What the verification took, prompts that the target read in it included."""
        return self.clock.seconds(1)

    @property
    def thresholds(self) -> Tensor:
        """The T that each drafted token's score was compared with: (B, L)."""
        return self.proposal.bounds.expand(self.proposal.drafted.shape)

    @lazy
    def active(self) -> Tensor:
        """Rows with a request: (B,) bool."""
        return to_device([request is not None for request in self.requests], self.drafted.device)

    @property
    def proposed(self) -> Tensor:
        """Tokens drafted in rows with a request: (B, L) bool."""
        return self._first(self.drafted)

    @property
    def decided(self) -> Tensor:
        """The accepted tokens and the first rejected one: (B, L) bool."""
        return self._first(torch.minimum(self.accepted + 1, self.drafted))

    @property
    def emitted(self) -> Tensor:
        """The round's tokens, of which the first `accepted + 1` of a row are emitted: (B, L + 1)."""
        return emitted_tokens(self.proposal, self.verdict, self.drafted, self.accepted)

    @lazy
    def exact_verdict(self) -> Verdict:
        """What the rule's lossless rule, with the same noise, decides on every drafted token."""
        return rule_named(self.rule.lossless).judge(self.proposal) if self.rule.fuzzy else self.verdict

    def _first(self, counts: Tensor) -> Tensor:
        span = torch.arange(self.proposal.drafted.shape[1], device=counts.device)
        return (span < counts[:, None]) & self.active[:, None]

    def scores(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Returns each named score, on raw logits where it is defined on either: (B, L)."""
        return scores_of(names, "raw", self.proposal.seen)

    def entropies(self) -> tuple[Tensor, Tensor]:
        """Returns the entropies of p and of q, on raw logits, in nats: (B, L) each."""
        return entropy(self._drafted_logits[0]), entropy(self._drafted_logits[1])

    def top_probabilities(self, k: int = 2) -> tuple[Tensor, Tensor]:
        """Returns the k largest probabilities of p and of q, in descending order: (B, L, k) each."""
        p, q = (log_softmax(logits).topk(k, -1).values.exp() for logits in self._drafted_logits)
        return p, q

    def ranks(self) -> tuple[Tensor, Tensor]:
        """Returns how many tokens p and q consider more likely than the drafted one: (B, L) each."""
        x = self.proposal.drafted.unsqueeze(-1)
        p, q = ((logits > logits.gather(-1, x)).sum(-1) for logits in self._drafted_logits)
        return p, q

    @property
    def _drafted_logits(self) -> tuple[Tensor, Tensor]:
        """The target's and the draft's raw logits at each drafted token: (B, L, V) each."""
        return self.proposal.target_logits[:, :-1], self.proposal.draft_logits


Observer = Callable[[RoundRecord], None]
"""Called once a round, before the host reads its results. Logits, drafted tokens and values computed from them belong
to the round and may be kept; the next round overwrites `trees`, `nodes` and the proposal's `tokens`, `keys` and
`thresholds`."""


def together(*observers: Observer) -> Observer:
    """Returns an observer that passes every round to all `observers`, in this order."""

    def observe(record: RoundRecord) -> None:
        for observer in observers:
            observer(record)

    return observe
