"""Texts that end in a loop, as decoding that has lost its way writes them until the limit on new tokens."""

from __future__ import annotations

from typing import Final

COPIES: Final = 3
LENGTH: Final = 60


def ends_in_loop(text: str) -> bool:
    """Returns whether a text ends in one passage, three times or more in a row, over at least 60 characters.

    White space at the end does not count. The last copy may be cut off by the limit on new tokens at any place, since
    the copies of a passage that begins elsewhere then end there.
    """
    text = text.rstrip()
    last = text[-1:]
    for length in range(1, len(text) // COPIES + 1):
        span = max(COPIES * length, LENGTH)
        if span > len(text):
            return False
        if text[-1 - length] == last and text[-span:-length] == text[-span + length :]:
            return True
    return False
