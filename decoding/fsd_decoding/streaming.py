"""Text that grows by tokens, given out piece by piece.

Knows what later tokens may still change of a tokenizer's text: a character may take several of them, a stop
string may be half there. Knows nothing of decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BROKEN = "\ufffd"  # what half a character decodes to


class TextStream:
    """`push` the tokens so far, then `rest` of the finished text: the pieces make up that text.

    Decodes all of the text every time, because a tail by itself may decode otherwise than behind what it follows.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer, self._unsettled = tokenizer, unsettled_tokens(tokenizer)
        self._held = max((len(s) for s in stops), default=1) - 1  # characters that may begin a stop string
        self._given = 0  # characters given out

    def push(self, tokens: list[int]) -> str:
        """What is new and sure once the text has these tokens; perhaps nothing."""
        end = len(tokens)
        while end and tokens[end - 1] in self._unsettled:
            end -= 1
        text = self._tokenizer.decode(tokens[:end], skip_special_tokens=True).rstrip(_BROKEN)
        if self._tokenizer.clean_up_tokenization_spaces:  # " n" and "'t" become "n't": the last space may go
            text = text.rpartition(" ")[0]
        return self.rest(text[: max(0, len(text) - self._held)])

    def rest(self, text: str) -> str:
        """What of the finished text was not given out yet."""
        piece = text[self._given :]
        self._given += len(piece)
        return piece


def unsettled_tokens(tokenizer: Any) -> frozenset[int]:
    """Tokens whose text is not their own: special ones have none, and of the bytes (`<0xE4>`) that tokenizers with
    byte fallback write in a row, one that is wrong breaks all."""
    special = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    written = tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in range(256)])  # None, or unk: no such token
    return frozenset(i for i in special + written if i is not None)
