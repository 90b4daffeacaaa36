"""Drafting without a model, from smoothed n-gram counts of the row's own text, and of a frozen corpus if there is one.

q is a function of the text alone, so there is nothing to train, prefill or roll back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.drafters.base import Frontier
from fsd_decoding.drafters.ngram_corpus import NGramCorpus, check_order, context_term

_ORDER = 3


@dataclass(frozen=True, repr=False)
class NGram:
    """A `DraftSource` of n-gram drafters, used as in `SpeculativeDecoder(target, NGram(), tokenizer)`.

    Args:
        order: n; the longest contexts have n - 1 tokens.
        corpus: counts of texts, used beside those of a row's own text.

    Raises:
        UsageError: the order is not a whole number from 1 to 16.
    """

    order: int = _ORDER
    corpus: NGramCorpus | None = None

    def __post_init__(self) -> None:
        check_order(self.order)

    @property
    def name(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        """What tells drafts apart, in cache keys too: settings other than the usual ones, and the corpus by content."""
        order = [] if self.order == _ORDER else [f"order={self.order}"]
        corpus = [] if self.corpus is None else [f"corpus={self.corpus.fingerprint[:16]}"]
        return f"NGram({', '.join(order + corpus)})"

    def drafter(self, rows: int, slots: int, vocabulary: int) -> NGramDrafter:
        """Returns a drafter. UsageError: the corpus holds tokens that the vocabulary does not have."""
        if self.corpus is not None and self.corpus.vocabulary > vocabulary:
            raise UsageError(
                f"the n-gram corpus holds token {self.corpus.vocabulary - 1}, and the models' vocabulary ends at "
                f"{vocabulary - 1}; make it of texts of their tokenizer"
            )
        return NGramDrafter(vocabulary, self.order, self.corpus)


class NGramDrafter:
    """A `Drafter` from counts of up to n tokens over prompt and generated text, with Witten–Bell smoothing.

    For a context h, let h' be h without its oldest token, c(h, w) the number of times that token w followed h, in the
    text and in the corpus together, c(h) the sum of these over w, and n(h) the number of different tokens that followed
    h. Then (Witten and Bell 1991, in the recursive form of Chen and Goodman, "An empirical study of smoothing
    techniques for language modeling", TR-10-98, section 2.5)

        q(w | h) = (c(h, w) + n(h) q(w | h')) / (c(h) + n(h)),

    where the distribution below the unigrams is uniform, 1 / V. q sums to one and is positive for every token. A step
    costs O(B n (slots + V)).

    Args:
        vocabulary: V.
        order: n.
        corpus: counts of other texts.
    """

    def __init__(self, vocabulary: int, order: int = _ORDER, corpus: NGramCorpus | None = None) -> None:
        self._vocabulary, self._order, self._corpus = vocabulary, order, corpus

    @property
    def identity(self) -> Hashable:
        return NGramDrafter, self._vocabulary, self._order, self._corpus

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
        context = torch.zeros_like(lengths)  # (B,) hash
        for back in range(self._order):
            if back:
                # Padding before the text equals no token, so contexts that reach beyond its start do not match.
                before = torch.nn.functional.pad(text, (back, 0), value=-1)[:, :reach]
                oldest = text.gather(1, (ends - back).clamp_min(0))
                follows = follows & (before == oldest)
                if self._corpus is not None:
                    context = context + context_term(oldest.squeeze(1), back)
            if self._corpus is None:
                q = _witten_bell(text, follows, q, self._vocabulary)
            else:
                followers, counts = self._corpus.followers(back, context)
                q = _with_corpus(text, follows, q, self._vocabulary, followers, torch.where(ends >= back, counts, 0))
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


def _with_corpus(
    text: Tensor, follows: Tensor, shorter: Tensor, vocabulary: int, followers: Tensor, counts: Tensor
) -> Tensor:
    """Returns what `_witten_bell` does, of the text's counts and those of a corpus together.

    Args:
        followers, counts: (B, n) tokens that follow the context in the corpus, and how often; 0: never.
    """
    pooled = shorter.new_zeros((len(text), vocabulary)).scatter_add_(1, text, follows.to(shorter.dtype))
    pooled.scatter_add_(1, followers, counts.to(shorter.dtype))
    total, distinct = pooled.sum(1, keepdim=True), (pooled > 0).sum(1, keepdim=True).clamp_min(1)
    return pooled.addcmul_(distinct, shorter).div_(total + distinct)
