"""Drafting without a model: a trigram estimate of the next token from the row's own text.

Knows counts and their smoothing. Knows nothing of sampling, of models or of rounds: what it says is a function of
the text alone, so there is nothing to train, to read in or to roll back.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

_CONTEXT = 2  # tokens the longest counts look back: a trigram


@dataclass(frozen=True)
class NGram:
    """Stands where a draft model stands: `SpeculativeDecoder(target, NGram(), tokenizer)`."""

    def drafter(self, rows: int, slots: int, vocabulary: int) -> NGramDrafter:
        return NGramDrafter(vocabulary)


class NGramDrafter:
    """Trigram, bigram and unigram counts over the prompt and all that follows it, by Witten–Bell smoothing.

    For a context h, of which h' is all but the oldest token, c(h, w) the times w followed h, c(h) their sum and
    n(h) the number of different tokens that did (Witten and Bell 1991, in the recursive form of Chen and Goodman,
    "An empirical study of smoothing techniques for language modeling", TR-10-98, section 2.5):

        q(w | h) = (c(h, w) + n(h) q(w | h')) / (c(h) + n(h)),     below the unigram: 1 / V

    It sums to one and gives every token of the vocabulary something. A step costs O(B (slots + V)).
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    @property
    def identity(self) -> Hashable:
        return NGramDrafter, self._vocabulary

    def prefill(self, rows: Tensor, tokens: Tensor, until: int) -> None:
        """Nothing: the text is the table."""

    def keep(self, rows: Tensor) -> None:
        """Nothing, likewise."""

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, reach: int) -> Tensor:
        """log q in fp32: (B, 1, V); see `Drafter`."""
        text, ends = tokens[:, :reach], lengths[:, None] + step  # (B, reach), (B, 1)
        follows = torch.arange(reach, device=text.device) < ends  # (B, reach): these tokens follow the context h
        q = torch.full((len(text), 1), 1.0 / self._vocabulary, device=text.device)
        for back in range(_CONTEXT + 1):
            if back:
                # An empty place before the text matches nothing, as a context that reaches beyond it must.
                before = torch.nn.functional.pad(text, (back, 0), value=-1)[:, :reach]
                follows = follows & (before == text.gather(1, (ends - back).clamp_min(0)))
            q = _witten_bell(text, follows, q, self._vocabulary)
        return q.log_().unsqueeze(1)


def _witten_bell(text: Tensor, follows: Tensor, shorter: Tensor, vocabulary: int) -> Tensor:
    """q(· | h) from the tokens that follow h and q(· | h'): (B, V). A context never seen leaves the latter as it is."""
    each = follows.to(shorter.dtype)  # (B, reach)
    counts = each.new_zeros((len(text), vocabulary)).scatter_add_(1, text, each)
    # Every kind of token counts one in all, which asks of (B, reach) what `counts` would be asked of (B, V).
    kinds = (each / counts.gather(1, text).clamp_min(1)).sum(1, keepdim=True).round()
    kinds = kinds.clamp_min(1)  # where nothing was seen
    return counts.addcmul_(kinds, shorter).div_(each.sum(1, keepdim=True) + kinds)
