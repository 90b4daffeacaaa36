"""What one round puts before an acceptance rule, and what a rule answers.

Knows logits, drafted tokens, keyed noise and thresholds of one round. Knows no rule, no model and nothing
of rows' bookkeeping. DESIGN words: x is the drafted token, y what target-only decoding would emit there with
the same noise, D the divergence, T the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fsd_decoding.divergence import check_name, unchecked
from fsd_decoding.errors import UsageError
from fsd_decoding.kernels.dispatch import serves
from fsd_decoding.sampling import Sampling
from fsd_decoding.tensors import lazy

if TYPE_CHECKING:
    from fsd_decoding.kernels.scan import Scan

Logits = Literal["raw", "processed"]


@dataclass(frozen=True)
class Criterion:
    """What D is, and what it may not accept.

    divergence: a name of `divergence.py`. on: "raw" logits, or "processed" by temperature, top-k and the
    like. within_support: reject what the processed target gives no probability, however small D is.
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
    """One round as a rule sees it: B rows, L drafted tokens, verified at L + 1 positions."""

    target_logits: Tensor  # (B, L + 1, V) raw
    draft_logits: Tensor  # (B, L, V) raw
    drafted: Tensor  # (B, L) x
    positions: Tensor  # (B, L + 1) absolute positions of the tokens to emit
    tokens: Tensor  # (B, slots) the rows' texts, the drafted tokens in place
    keys: Tensor  # (B, 2) of the noise
    thresholds: Tensor  # (B,) T that each prompt was given
    criterion: Criterion
    sampling: Sampling
    adapted: Tensor | None = None  # (B, 1) or (B, L) T in its stead
    scales: Tensor | None = None  # (B, 1) or (B, L) what T is multiplied with

    @lazy
    def warped_target(self) -> Tensor:
        return self.sampling.warp(self.target_logits, self.tokens, self.positions)

    @lazy
    def warped_draft(self) -> Tensor:
        return self.sampling.warp(self.draft_logits, self.tokens, self.positions[:, :-1])

    @lazy
    def target_choice(self) -> Tensor:
        """y at every position, the last one being the bonus: (B, L + 1)."""
        if self._scanned is not None:
            return self._scanned.choice
        return self.sampling.draw(self.warped_target, self.keys, self.positions)

    @lazy
    def _scanned(self) -> Scan | None:
        """The target's raw logits, read once for y and for D; None where no kernel reads them."""
        return self.sampling.scan(self.target_logits, self.keys, self.positions)

    @lazy
    def _draft_scanned(self) -> Scan | None:
        """The draft's, likewise."""
        if self._scanned is None or not (self.draft_logits.numel() and serves(self.draft_logits)):
            return None
        from fsd_decoding.kernels.scan import scan

        return scan(self.draft_logits)

    @property
    def finite(self) -> tuple[Tensor, Tensor]:
        """Where logits are no NaN, not +inf and not all -inf: the target's (B, L + 1), the draft's (B, L)."""
        target, draft = self._scanned, self._draft_scanned
        return (
            (self.target_logits.amax(-1) if target is None else target.normaliser).isfinite(),
            (self.draft_logits.amax(-1) if draft is None else draft.normaliser).isfinite(),
        )

    @lazy
    def divergences(self) -> Tensor:
        """D: (B, L)."""
        name = self.criterion.divergence
        if self.criterion.on == "raw":
            scanned = self._scanned, self._draft_scanned
            return unchecked([name], self.target_logits[:, :-1], self.draft_logits, scanned)[name]
        return unchecked([name], self.warped_target[:, :-1], self.warped_draft)[name]

    @lazy
    def scores(self) -> Tensor:
        """What T is held against: D, over its scale if there is one; infinity where it may not accept: (B, L)."""
        scores = self.divergences
        if self.scales is not None:
            scores = torch.where(self.scales > 0, scores / self.scales, float("inf"))
        if not self.criterion.within_support:
            return scores
        impossible = self.of_drafted(self.warped_target[:, :-1]) == float("-inf")
        return scores.masked_fill(impossible, float("inf"))

    def of_drafted(self, values: Tensor) -> Tensor:
        """What `values` (B, L, V) hold for x: (B, L)."""
        return values.gather(-1, self.drafted.unsqueeze(-1)).squeeze(-1)

    def within_threshold(self, scores: Tensor) -> Tensor:
        """score <= T, where an infinite score never is: (B, L)."""
        return (scores <= self._own) & scores.isfinite()

    @property
    def bounds(self) -> Tensor:
        """T that D is held against, all told: (B, 1) or (B, L)."""
        return self._own if self.scales is None else self._own * self.scales

    def bounded(self, proposed: Tensor) -> Tensor:
        """Whether T is a number, and no scale negative, where a token was `proposed` (B, L): (B,) bool."""
        if self.scales is None and self.adapted is None:
            return torch.ones_like(self.thresholds, dtype=torch.bool)
        sound = self.scales >= 0 if self.scales is not None else ~self._own.isnan()
        return (sound | ~proposed).all(1)

    @property
    def _own(self) -> Tensor:
        """What scores are held against: (B, 1) or (B, L)."""
        return self.thresholds[:, None] if self.adapted is None else self.adapted


@dataclass(frozen=True)
class Verdict:
    """What a rule says of a round; the engine cuts it at the first rejection."""

    accepted: Tensor  # (B, L) bool
    fallback: Tensor  # (B, L): emitted in place of the first rejected token
    score: Tensor | None = None  # (B, L) what T was held against: accepted where score <= T
    by_score: Tensor | None = None  # (B, L) bool: the decisions the score made; the others do not depend on T
