"""Text that grows by tokens, given out piece by piece.

Knows what later tokens may still change of a tokenizer's text: a character may take several of them, a stop
string may be half there. Knows nothing of decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

# MERGED: """Finds stop strings in growing token lists. Knows a tokenizer's `decode` and nothing of decoding."""
# MERGED: """What is looked up in a whole vocabulary, once for a tokenizer. Knows tokenizers by their identity and size alone."""


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


class StopStrings:
    """Looks in the tail that a new stop string could reach into, and asks the whole text once it finds one."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer, self._stops, self._unsettled = tokenizer, tuple(stops), unsettled_tokens(tokenizer)
        # Any other token is at least one byte of text, so this many of them before the new ones are enough.
        self._reach = max(len(s.encode()) for s in stops)

    def completed_at(self, tokens: list[int], new: int) -> int | None:
        """How many of `tokens` there are up to the one that completes a stop string, or None.

        Only the last `new` can complete one: the others were looked at before.
        """
        start, ends = self._start_of_tail(tokens, new), range(len(tokens) - new + 1, len(tokens) + 1)
        if not any(self._holds(tokens[start:end]) for end in (ends if self._may_vanish(tokens[-new:]) else ends[-1:])):
            return None
        return next((end for end in ends if self._holds(tokens[:end])), None)

    def _may_vanish(self, new: list[int]) -> bool:
        """Whether text may go again within a round, so that its end alone does not show what was completed."""
        return self._tokenizer.clean_up_tokenization_spaces or not self._unsettled.isdisjoint(new)

    def _start_of_tail(self, tokens: list[int], new: int) -> int:
        start, reached = len(tokens) - new, 0
        while start > 0 and reached < self._reach:
            start -= 1
            reached += tokens[start] not in self._unsettled
        return start

    def _holds(self, tokens: list[int]) -> bool:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return any(s in text for s in self._stops)


Table = TypeVar("Table")


def per_tokenizer(look: Callable[[Any], Table]) -> Callable[[Any], Table]:
    """`look`, which remembers: policies are made anew for every call of the decoder, and a look takes seconds."""
    known: WeakKeyDictionary[Any, dict[int, Table]] = WeakKeyDictionary()  # by size: tokens may be added

    def found(tokenizer: Any) -> Table:
        tables = known.setdefault(tokenizer, {})
        if len(tokenizer) not in tables:
            tables[len(tokenizer)] = look(tokenizer)
        return tables[len(tokenizer)]

    return found
