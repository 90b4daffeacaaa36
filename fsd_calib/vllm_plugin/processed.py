"""Scores of p and q as sampling has processed them, which vLLM does in its rejection sampler: tokens are judged there.

Scores of raw logits are compared with T before, see `judge.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fsd_decoding.divergence import chunk_elements
from fsd_decoding.scores import Score, Seen, window_kept
from fsd_decoding.tensors import argmax


def compare(scores: Tensor, limits: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns scores divided by the factors of T, infinite where those are 0, and whether they are at most T: (n,).

    Args:
        scales: (n,) the factors; None: T is constant.
    """
    compared = scores if scales is None else torch.where(scales > 0, scores / scales, torch.inf)
    return compared, (compared <= limits) & (compared < torch.inf)


class Bounds(NamedTuple):
    """What a score must not exceed at n tokens, and what else is known of these before vLLM processes their logits."""

    limits: Tensor  # (n,) T; below 0 nothing is accepted by its score
    scales: Tensor  # (n,) factors of T
    after: Tensor  # (n,) how many tokens of the same draft follow
    greedy: Tensor  # (n,) bool: whether their request is greedy

    def spread(self, total: int, at: Tensor | None) -> Bounds:
        """Returns those of `total` tokens, of which these are at some places (n,); None: they are all."""
        if at is None:
            return self
        return Bounds(*(
            each.new_full((total,), nothing).index_put_((at,), each)
            for each, nothing in zip(self, (-torch.inf, 1, 0, False), strict=True)
        ))  # fmt: skip

    def part(self, begin: int, end: int) -> Bounds:
        """Returns those of some tokens."""
        return Bounds(*(each[begin:end] for each in self))


@dataclass(frozen=True)
class Sight:
    """What vLLM's rejection sampler sees of n drafted tokens."""

    target: Tensor  # (n, V) logits of p, processed
    drafted: Tensor  # (n,) ids; negative ones are padding
    draft: Tensor | None = None  # (n, V) q that the tokens were drawn from; None: it is not known
    uniform: Tensor | None = None  # (n,) u that vLLM's exact test is about to take, in fp64; None: it is not known

    def judge(self, score: Score, bounds: Bounds) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the scores, infinite where no T may accept, and what `compare` does: (n,) each."""
        parts = [
            (score.of(seen), self._kept(seen, part, bounds.greedy[part]) if score.window else None)
            for part, seen in self._parts(score)
        ]
        scores = torch.cat([each for each, _ in parts])
        if score.window:
            kept = torch.cat([each for _, each in parts if each is not None])
            confirmed = window_kept(kept, score.window) & (bounds.after >= score.window)
            scores = scores.masked_fill(~confirmed, torch.inf)
        return scores, *compare(scores, bounds.limits, bounds.scales)

    def _parts(self, score: Score) -> Iterator[tuple[slice, Seen]]:
        """Yields few enough tokens at a time for the memory that vLLM leaves."""
        vocabulary = self.target.shape[-1]
        size = chunk_elements(self.target.device.type, vocabulary) // vocabulary
        for begin in range(0, len(self.target), size):
            part = slice(begin, begin + size)
            yield part, self._seen(score, part)

    def _seen(self, score: Score, part: slice) -> Seen:
        target, uniform = self.target[part], None if self.uniform is None else self.uniform[part]
        draft = self.draft[part].log() if self.draft is not None and score.reads_draft else target  # not read then
        return Seen(target, draft, ids_of(self.drafted[part]), None if uniform is None else lambda: uniform)

    def _kept(self, seen: Seen, part: slice, greedy: Tensor) -> Tensor:
        """Whether vLLM's exact rule keeps the tokens; where a request samples and u is not known, False: (n,) bool."""
        drafted = self.drafted[part]
        chosen = greedy & (drafted == argmax(seen.target_logits))
        if self.draft is None or self.uniform is None:
            return chosen
        q = self.draft[part].gather(1, seen.drafted.unsqueeze(1)).squeeze(1)
        by_chance = ~greedy & (drafted >= 0) & (q > 0) & (seen.target.drafted / q >= self.uniform[part])
        return chosen | by_chance


def ids_of(drafted: Tensor) -> Tensor:
    """Ids that vocabularies can be indexed with."""
    return drafted.long().clamp_min(0)
