"""What kind of token an id is, and whether it ends a text: two numbers an id, from the tokenizer alone.

Knows how tokenizers write spaces and line breaks. Knows nothing of models or probabilities.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fsd_predictors.features.features import Array

KINDS = ("inside a word", "digit", "begins a word", "punctuation", "line break", "space")
"""The kinds by their number."""

_INSIDE, _DIGIT, _BEGINS, _PUNCTUATION, _BREAK, _SPACE = range(len(KINDS))
_WRITTEN = {
    "Ġ": " ",
    "▁": " ",
    "Ċ": "\n",
    "č": "\r",
    "ĉ": "\t",
    "<0x0A>": "\n",
    "</w>": "",
}  # byte-level, SentencePiece


@dataclass(frozen=True)
class TokenKinds:
    """kind: (V,) float64, of `KINDS`. ends: (V,) float64, 1 where the id ends a text.

    V is above every id of the tokenizer, and leaves room for those that only models have: heads are padded, and a
    draft may draw from what lies there.
    """

    kind: Array
    ends: Array

    @classmethod
    def of(cls, tokenizer: Any, eos: Collection[int]) -> Self:
        """Of a `transformers` tokenizer and the ids that end a text."""
        known = len(tokenizer)
        size = max(1 << known.bit_length(), 1 + max(eos, default=0))
        kind, ends = np.zeros(size), np.zeros(size)
        kind[:known] = [_kind(written) for written in tokenizer.convert_ids_to_tokens(range(known))]
        ends[list(eos)] = 1.0
        return cls(kind, ends)


def _kind(written: str | None) -> int:
    """By the token's text; None: an id that the tokenizer leaves out."""
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
