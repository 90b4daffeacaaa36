"""Text that grows by tokens, given out piece by piece.

Knows a tokenizer's `decode`: a character may take several tokens, and a stop string may be half there. Knows
nothing of decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BROKEN = "\ufffd"  # what half a character decodes to


class TextStream:
    """`push` the tokens so far, then `rest` of the finished text: the pieces make up that text."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._held = max((len(s) for s in stops), default=1) - 1  # characters that may begin a stop string
        self._text = ""  # decoded so far
        self._given = 0  # characters of it given out
        self._from, self._read = 0, 0  # tokens before `_from` need no decoding again; `_read` are in the text

    def push(self, tokens: list[int]) -> str:
        """What is new and sure once the text has these tokens; perhaps nothing."""
        before = self._decode(tokens[self._from : self._read])
        after = self._decode(tokens[self._from :])
        if after.endswith(_BROKEN):
            return ""
        self._text += after[len(before) :]
        self._from, self._read = self._read, len(tokens)
        return self._give(self._text[: len(self._text) - self._held])

    def rest(self, text: str) -> str:
        """What of the finished text was not given out yet."""
        return self._give(text)

    def _give(self, text: str) -> str:
        piece = text[self._given :]
        self._given += len(piece)
        return piece

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text
