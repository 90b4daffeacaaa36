"""Input and output of an acceptance rule: one round's drafted tokens, and the decisions on them.

Throughout the acceptance code x is the drafted token, y the token that target-only decoding would emit at its position
with the same noise, D the divergence of the two models' next-token distributions there, and T the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_common.errors import UsageError
from fsd_decoding.divergence import check_name, unchecked_divergences
from fsd_decoding.kernels.dispatch import kernels_support
from fsd_decoding.sampling import Sampling
from fsd_decoding.tensors import lazy
from fsd_decoding.trees.tree import Tree

if TYPE_CHECKING:
    from fsd_decoding.kernels.scan import Scan

Logits = Literal["raw", "processed"]


@dataclass(frozen=True)
class Criterion:
    """How D is computed, and which tokens a small D may not accept.

    Args:
        divergence: a name of `divergence.py`, such as "js" or "js@50".
        on: "raw" logits, or logits "processed" by temperature, top-k and the other sampling settings.
        within_support: reject tokens to which the processed target gives probability 0, however small D is.
    """

    divergence: str = "js"
    on: Logits = "raw"
    within_support: bool = False

    def __post_init__(self) -> None:
        check_name(self.divergence)
        if self.on not in ("raw", "processed"):
            raise UsageError(f"divergences are computed on 'raw' or 'processed' logits, not on {self.on!r}")
        if not isinstance(self.within_support, bool):
            raise UsageError(f"within_support is {self.within_support!r}; it must be True or False")


@dataclass
class Proposal:
    """One round as a rule receives it: B rows, L drafted tokens each, verified at L + 1 positions.

    With trees, whose nodes are breadth first, "position" n is node n of N instead: `drafted` are the first children of
    nodes 0 … N - 1, and mean nothing where there are none.
    """

    target_logits: Tensor  # (B, L + 1, V) raw
    draft_logits: Tensor  # (B, L, V) raw
    drafted: Tensor  # (B, L) x
    positions: Tensor  # (B, L + 1) absolute positions of the tokens to emit
    tokens: Tensor  # (B, slots) prompt and new tokens of each row, the drafted ones included
    keys: Tensor  # (B, 2) noise keys
    thresholds: Tensor  # (B,) T requested for each prompt
    criterion: Criterion
    sampling: Sampling
    adapted: Tensor | None = None  # (B, 1) or (B, L) T of a threshold policy, which replaces `thresholds`
    scales: Tensor | None = None  # (B, 1) or (B, L) factors of a scale policy, by which T is multiplied
    race: Tensor | None = None  # (B, L + 1, V) noise of the token race, where it was computed for the draft
    tree: Tree | None = None  # what was drafted; None: a chain

    @lazy
    def warped_target(self) -> Tensor:
        """The target's processed logits: (B, L + 1, V)."""
        return self.sampling.warp(self.target_logits, self.tokens, self.positions)

    @lazy
    def warped_draft(self) -> Tensor:
        """The draft's processed logits: (B, L, V)."""
        return self.sampling.warp(self.draft_logits, self.tokens, self.positions[:, :-1])

    @lazy
    def target_choice(self) -> Tensor:
        """y at every position, the last one being the bonus token: (B, L + 1)."""
        if self._target_scan is not None:
            return self._target_scan.choice
        return self.sampling.draw(self.warped_target, self.keys, self.positions, self.race)

    @lazy
    def _target_scan(self) -> Scan | None:
        """One kernel pass over the target's raw logits, shared by y and D; None where no kernel applies."""
        return self.sampling.scan(self.target_logits, self.keys, self.positions)

    @lazy
    def _draft_scan(self) -> Scan | None:
        """One kernel pass over the draft's raw logits; None where no kernel applies."""
        if self._target_scan is None or not (self.draft_logits.numel() and kernels_support(self.draft_logits)):
            return None
        from fsd_decoding.kernels.scan import scan

        return scan(self.draft_logits)

    @property
    def finite(self) -> tuple[Tensor, Tensor]:
        """Where logits hold no NaN, no +inf and not only -inf: the target's (B, L + 1), the draft's (B, L)."""
        target, draft = self._target_scan, self._draft_scan
        return (
            (self.target_logits.amax(-1) if target is None else target.normaliser).isfinite(),
            (self.draft_logits.amax(-1) if draft is None else draft.normaliser).isfinite(),
        )

    @lazy
    def divergences(self) -> Tensor:
        """D at the drafted positions: (B, L)."""
        name = self.criterion.divergence
        if self.criterion.on == "raw":
            scans = self._target_scan, self._draft_scan
            return unchecked_divergences([name], self.target_logits[:, :-1], self.draft_logits, scans)[name]
        return unchecked_divergences([name], self.warped_target[:, :-1], self.warped_draft)[name]

    @lazy
    def scores(self) -> Tensor:
        """Scores compared with T: D, divided by its scale if there is one; infinite where D may not accept: (B, L)."""
        scores = self.divergences
        if self.scales is not None:
            scores = torch.where(self.scales > 0, scores / self.scales, float("inf"))
        if not self.criterion.within_support:
            return scores
        impossible = self.of_drafted(self.warped_target[:, :-1]) == float("-inf")
        return scores.masked_fill(impossible, float("inf"))

    def of_drafted(self, values: Tensor) -> Tensor:
        """The entries of `values` (B, L, V) at the drafted tokens x: (B, L)."""
        return values.gather(-1, self.drafted.unsqueeze(-1)).squeeze(-1)

    def within_threshold(self, scores: Tensor) -> Tensor:
        """Whether score <= T, which an infinite score never is: (B, L) bool."""
        return (scores <= self._unscaled_bounds) & scores.isfinite()

    @property
    def bounds(self) -> Tensor:
        """The effective bounds on D, scales included: (B, 1) or (B, L)."""
        return self._unscaled_bounds if self.scales is None else self._unscaled_bounds * self.scales

    def health(self, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """Whether all logits are finite, and whether no T is NaN and no scale negative: (B,) bool each.

        Args:
            drafted: (B,) how many of a chain's tokens count; the rest is padding.
        """
        target, draft = self.finite
        if self.tree is None:
            padding = torch.arange(self.drafted.shape[1], device=drafted.device) >= drafted[:, None]
            return target[:, 0] & (target[:, 1:] & draft | padding).all(1), self._has_valid_bounds(padding)
        unread, unjudged = self.tree.depths == 0, ~self.tree.internal
        finite = (target[:, 1:] | unread) & (draft | unjudged)
        return target[:, 0] & finite.all(1), self._has_valid_bounds(unjudged)

    def _has_valid_bounds(self, unjudged: Tensor) -> Tensor:
        if self.scales is None and self.adapted is None:
            return torch.ones_like(self.thresholds, dtype=torch.bool)
        valid = self.scales >= 0 if self.scales is not None else ~self._unscaled_bounds.isnan()
        return (valid | unjudged).all(1)

    @property
    def _unscaled_bounds(self) -> Tensor:
        """The bounds on scores: (B, 1) or (B, L)."""
        return self.thresholds[:, None] if self.adapted is None else self.adapted


@dataclass(frozen=True)
class Verdict:
    """A rule's decisions on every drafted token of a round, without regard to earlier rejections; see `walk.py`."""

    accepted: Tensor  # (B, L) bool
    fallback: Tensor  # (B, L) token emitted in place of a rejected one; in a tree it may be another child's
    score: Tensor | None = None  # (B, L) compared with T: accepted where score <= T
    by_score: Tensor | None = None  # (B, L) bool: decided by the score; the other decisions do not depend on T


def emitted_tokens(proposal: Proposal, verdict: Verdict, drafted: Tensor, accepted: Tensor) -> Tensor:
    """The tokens of a round, of which the first `accepted + 1` of each row are emitted: (B, L + 1).

    Args:
        drafted: (B,) number of proposed tokens.
        accepted: (B,) number of them before the first rejection.
    """
    span = torch.arange(proposal.positions.shape[1], device=drafted.device)
    last = torch.where(span < drafted[:, None], pad(verdict.fallback, (0, 1)), proposal.target_choice)
    return torch.where(span < accepted[:, None], pad(proposal.drafted, (0, 1)), last)
