"""Counts of drafted tokens in replay and in decoding, which drafts no more than a text may still get."""

from __future__ import annotations

from fsd_decoding.engine.result import Result


def is_drafted_as_replayed(real: Result, replayed: int, length: int, limit: int) -> bool:
    """Whether decoding drafted as many tokens as replay says, at drafts of up to `length` and texts of up to `limit`.

    Replay does not know of the limit. In rounds before it, of which one may get l tokens, decoding drafts l at most: so
    it drafts up to `length` - l less in each, with another l from 1 on.
    """
    beyond = replayed - real.drafted
    return beyond == 0 or (real.emitted > limit - length and 0 < beyond <= length * (length - 1) / 2)
