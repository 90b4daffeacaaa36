"""What a rule sees of a round, and what it says of it.

Throughout x is the drafted token, y the token that target-only decoding would emit at its position with the same noise,
and T the threshold that bounds a token's score.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding import noise
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import Logits, Score, Seen, score_named, window_kept
from fsd_decoding.tensors import kernels_support, lazy
from fsd_decoding.trees import Tree

if TYPE_CHECKING:
    from fsd_decoding.kernels import Scan


@dataclass(frozen=True)
class Criterion:
    """What T bounds, and which tokens it may not accept.

    Args:
        score: a name of `scores.py`, such as "js", "js@50" or "margin".
        on: "raw" logits, or logits "processed" by temperature, top-k and the other sampling settings; those that a
            score is defined on are taken, whatever is given.
        within_support: reject tokens to which the processed target gives probability 0, however low their score is.
    """

    score: str = "js"
    on: Logits = "raw"
    within_support: bool = False
    scorer: Score = field(init=False, repr=False, compare=False)  # looked up once, as a compiled round cannot

    def __post_init__(self) -> None:
        object.__setattr__(self, "scorer", score_named(self.score))
        if self.on not in ("raw", "processed"):
            raise UsageError(f"scores are computed on 'raw' or 'processed' logits, not on {self.on!r}")
        object.__setattr__(self, "on", self.scorer.on or self.on)
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
    gumbel: Tensor | None = None  # (B, L + 1, V) Gumbel noise of the positions, where it was computed for the draft
    tree: Tree | None = None  # what was drafted; None: a chain
    counts: Tensor | None = None  # (B,) how many tokens of a chain were drafted, the rest is padding; None: all
    begins: Tensor | None = None  # (B,) position of each text's first token; None: nobody knows it
    past: Tensor | None = None  # (B, L, 3) see `judging.past.Past.before`; None: no score reads it

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
        return self.sampling.draw(self.warped_target, self.keys, self.positions, self.gumbel)

    @lazy
    def _target_scan(self) -> Scan | None:
        """One kernel pass over the target's raw logits, shared by y and D; None where no kernel applies."""
        return self.sampling.scan(self.target_logits, self.keys, self.positions)

    @lazy
    def _draft_scan(self) -> Scan | None:
        """One kernel pass over the draft's raw logits; None where no kernel applies."""
        if self._target_scan is None or not (self.draft_logits.numel() and kernels_support(self.draft_logits)):
            return None
        from fsd_decoding.kernels import scan

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
    def scores(self) -> Tensor:
        """The score at the drafted positions, without regard to other positions: (B, L)."""
        return self.criterion.scorer.of(self.seen(self.criterion.on))

    def seen(self, on: Logits) -> Seen:
        """What scores may read, as (B, L)."""
        if on == "raw":
            target, draft, scans = self.target_logits[:, :-1], self.draft_logits, (self._target_scan, self._draft_scan)
        else:
            target, draft, scans = self.warped_target[:, :-1], self.warped_draft, (None, None)
        uniform = partial(self.uniform, torch.float64)
        places = None if self.begins is None else self._places
        past = None if self.past is None else self._past
        return Seen(target, draft, self.drafted, uniform, self.sampling.greedy, scans, self._before, places, past)

    def _before(self) -> Tensor:
        """The token before each drafted one, of a chain: (B, L)."""
        return self.tokens.gather(1, self.positions[:, :-1] - 1)

    def _places(self) -> Tensor:
        """The places of the drafted tokens in their texts, from 0: (B, L)."""
        assert self.begins is not None
        return self.positions[:, :-1] - self.begins[:, None]

    def _past(self) -> Tensor:
        assert self.past is not None
        return self.past

    def uniform(self, dtype: torch.dtype) -> Tensor:
        """u of the exact test of every drafted token: (B, L)."""
        return noise.uniform(self.keys, self.positions[:, :-1], noise.Stream.ACCEPT, dtype)

    def compared(self, exact: Tensor) -> Tensor:
        """Scores compared with T: divided by their scales if there are any; infinite where no T may accept: (B, L).

        Args:
            exact: (B, L) bool: what the exact rule accepts.
        """
        scores, window = self.scores, self.criterion.scorer.window
        if self.scales is not None:
            scores = torch.where(self.scales > 0, scores / self.scales, float("inf"))
        if window:
            scores = scores.masked_fill(~self.followed(exact, window), float("inf"))
        if self.criterion.within_support:
            impossible = self.of_drafted(self.warped_target[:, :-1]) == float("-inf")
            scores = scores.masked_fill(impossible, float("inf"))
        return scores

    def followed(self, exact: Tensor, window: int) -> Tensor:
        """Whether as many tokens were drafted after each one, and the exact rule accepts all of them: (B, L) bool."""
        return window_kept(exact & self.inside, window)

    @property
    def inside(self) -> Tensor:
        """The tokens of a chain that were drafted, without padding: (B, L) bool."""
        if self.counts is None:
            return torch.ones_like(self.drafted, dtype=torch.bool)
        return torch.arange(self.drafted.shape[1], device=self.drafted.device) < self.counts[:, None]

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

    def finite_and_valid(self, drafted: Tensor) -> tuple[Tensor, Tensor]:
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
    """A rule's decisions on every drafted token of a round, without regard to earlier rejections; see `walk`."""

    accepted: Tensor  # (B, L) bool
    fallback: Tensor  # (B, L) token emitted in place of a rejected one; in a tree it may be another child's
    score: Tensor | None = None  # (B, L) compared with T: accepted where score <= T
    by_score: Tensor | None = None  # (B, L) bool: decided by the score; the other decisions do not depend on T
