"""Finds stop strings in growing token lists. Knows a tokenizer's `decode` and nothing of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsd_decoding.streaming import unsettled_tokens


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
