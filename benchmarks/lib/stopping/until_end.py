"""The least that a fixed length can be improved by: nothing is drafted behind an end of text.

Knows the ids that end one. It measures nothing else, so that it is timed for what it does.
"""

from __future__ import annotations

from collections.abc import Collection

from fsd_decoding.policies.stopping import DraftState, StopPolicy


class UntilEnd(StopPolicy):
    """Up to the request's draft length, and no further than a drafted id of `ends`."""

    def __init__(self, ends: Collection[int]) -> None:
        self.identity, self._ends = "until-end", frozenset(ends)

    def goes_on(self, state: DraftState) -> list[bool]:
        if not state.logits:
            return [True] * len(state.rows)
        last = state.batch.lengths[:, None] + (len(state.logits) - 1)
        return [token not in self._ends for (token,) in state.batch.tokens.gather(1, last).tolist()]
