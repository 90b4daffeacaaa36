"""Drafting without a model, from smoothed trigram counts of the row's own text.

q is a function of the text alone, so there is nothing to train, prefill or roll back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding.drafters.base import Frontier

_CONTEXT = 2  # tokens of context of the longest counts, which are trigrams


@dataclass(frozen=True)
class NGram:
    """A `DraftSource` of trigram drafters, used as in `SpeculativeDecoder(target, NGram(), tokenizer)`."""

    def drafter(self, rows: int, slots: int, vocabulary: int) -> NGramDrafter:
        return NGramDrafter(vocabulary)


class NGramDrafter:
    """A `Drafter` from trigram, bigram and unigram counts over prompt and generated text, with Witten–Bell smoothing.

    For a context h, let h' be h without its oldest token, c(h, w) the number of times that token w followed h, c(h) the
    sum of these over w, and n(h) the number of different tokens that followed h. Then (Witten and Bell 1991, in the
    recursive form of Chen and Goodman, "An empirical study of smoothing techniques for language modeling", TR-10-98,
    section 2.5)

        q(w | h) = (c(h, w) + n(h) q(w | h')) / (c(h) + n(h)),

    where the distribution below the unigrams is uniform, 1 / V. q sums to one and is positive for every token. A step
    costs O(B (slots + V)).

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    @property
    def identity(self) -> Hashable:
        return NGramDrafter, self._vocabulary

    def prefill(self, rows: Tensor, tokens: Tensor, until: int) -> None:
        """Does nothing, as counts are taken from the text at every step."""

    def keep(self, rows: Sequence[int]) -> None:
        """Does nothing, as no state is kept per row."""

    def expand(self, tokens: Tensor, lengths: Tensor, frontier: Frontier, reach: int) -> Tensor:
        """Counts over the text and the tokens that lead to each node, as `logits` does in a chain of them."""
        rows, width, depth = frontier.paths.shape
        texts = tokens[:, :reach].repeat_interleave(width, 0)
        lengths = lengths.repeat_interleave(width)
        behind = lengths[:, None] + torch.arange(depth, device=lengths.device)
        texts.scatter_(1, behind, frontier.paths.flatten(0, 1))
        return self.logits(texts, lengths, depth, reach).view(rows, width, -1)

    def commit(self, lengths: Tensor, places: Tensor) -> None:
        """Does nothing, as no state is kept per node."""

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, reach: int) -> Tensor:
        """Returns log q in fp32 (B, 1, V); see `Drafter.logits`."""
        text, ends = tokens[:, :reach], lengths[:, None] + step  # (B, reach), (B, 1)
        follows = torch.arange(reach, device=text.device) < ends  # (B, reach): these tokens follow the context h
        q = torch.full((len(text), 1), 1.0 / self._vocabulary, device=text.device)
        for back in range(_CONTEXT + 1):
            if back:
                # Padding before the text equals no token, so contexts that reach beyond its start do not match.
                before = torch.nn.functional.pad(text, (back, 0), value=-1)[:, :reach]
                follows = follows & (before == text.gather(1, (ends - back).clamp_min(0)))
            q = _witten_bell(text, follows, q, self._vocabulary)
        return q.log_().unsqueeze(1)


def _witten_bell(text: Tensor, follows: Tensor, shorter: Tensor, vocabulary: int) -> Tensor:
    """Returns q(· | h), which is q(· | h') where the context h has no counts.

    Args:
        text: (B, reach) token ids.
        follows: (B, reach) bool, whether the token at each position follows an occurrence of h.
        shorter: (B, V) q(· | h'), or (B, 1) where it is uniform.
        vocabulary: V.

    Returns:
        (B, V).
    """
    weights = follows.to(shorter.dtype)  # (B, reach)
    counts = weights.new_zeros((len(text), vocabulary)).scatter_add_(1, text, weights)
    # n(h): occurrences weighted by 1 / count sum to one per distinct token. That takes (B, reach) work, not (B, V).
    distinct = (weights / counts.gather(1, text).clamp_min(1)).sum(1, keepdim=True).round()
    distinct = distinct.clamp_min(1)  # where h has no counts
    return counts.addcmul_(distinct, shorter).div_(weights.sum(1, keepdim=True) + distinct)
