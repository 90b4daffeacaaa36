"""Finds stop strings in growing token lists. Knows a tokenizer's `decode` and nothing of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopStrings:
    """Decodes only the tail that a new stop string could reach into."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        # A token is at least one byte of text, so this many tokens before the new ones are enough.
        self._reach = max(len(s.encode()) for s in stops)

    def completed_at(self, tokens: list[int], new: int) -> int | None:
        """How many of `tokens` there are up to the one that completes a stop string, or None.

        Only the last `new` can complete one: the others were looked at before.
        """
        start = max(0, len(tokens) - new - self._reach)
        if not self._holds(tokens[start:]):
            return None
        ends = range(len(tokens) - new + 1, len(tokens) + 1)
        return next((end for end in ends if self._holds(tokens[start:end])), None)

    def _holds(self, tokens: list[int]) -> bool:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return any(s in text for s in self._stops)
