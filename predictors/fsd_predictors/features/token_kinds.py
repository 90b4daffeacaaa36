"""The kind of each token id (word, digit, punctuation …) and whether it ends a text, from the tokenizer alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fsd_predictors.features.features import Array

KINDS = ("inside a word", "digit", "begins a word", "punctuation", "line break", "space")
"""Names of the kinds, by their index."""

_INSIDE, _DIGIT, _BEGINS, _PUNCTUATION, _BREAK, _SPACE = range(len(KINDS))
# How byte-level and SentencePiece tokenizers write white space.
_WRITTEN = {
    "Ġ": " ",
    "▁": " ",
    "Ċ": "\n",
    "č": "\r",
    "ĉ": "\t",
    "<0x0A>": "\n",
    "</w>": "",
}


@dataclass(frozen=True)
class TokenKinds:
    """Tables over the vocabulary.

    V exceeds every id of the tokenizer and leaves room for ids that only models have: their output layers are padded,
    and a draft may draw a token from the padding.

    Args:
        kind: (V,) float64 indices into `KINDS`.
        ends: (V,) float64, 1 where the id ends a text, else 0.
    """

    kind: Array
    ends: Array

    @classmethod
    def of(cls, tokenizer: Any, eos: Collection[int]) -> Self:
        """Builds the tables of a `transformers` tokenizer and the ids that end a text."""
        known = len(tokenizer)
        size = max(1 << known.bit_length(), 1 + max(eos, default=0))
        kind, ends = np.zeros(size), np.zeros(size)
        kind[:known] = [_kind(written) for written in tokenizer.convert_ids_to_tokens(range(known))]
        ends[list(eos)] = 1.0
        return cls(kind, ends)


def _kind(written: str | None) -> int:
    """Returns the index of a token's kind by its text; None is an id that the tokenizer does not use."""
    text = written or ""
    for mark, meaning in _WRITTEN.items():
        text = text.replace(mark, meaning)
    if "\n" in text or "\r" in text:
        return _BREAK
    if any(character.isdecimal() for character in text):
        return _DIGIT
    if text.isspace():
        return _SPACE
    if text and not any(character.isalnum() for character in text):
        return _PUNCTUATION
    return _BEGINS if text[:1].isspace() else _INSIDE
