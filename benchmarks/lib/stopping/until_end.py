"""The simplest improvement of a fixed draft length: no tokens are drafted after an end of text."""

from __future__ import annotations

from collections.abc import Collection

from fsd_decoding.policies.stopping import DraftState, StopPolicy


class UntilEnd(StopPolicy):
    """Drafts up to the request's draft length, but not beyond a drafted token of `ends`."""

    def __init__(self, ends: Collection[int]) -> None:
        self.identity, self._ends = "until-end", frozenset(ends)

    def goes_on(self, state: DraftState) -> list[bool]:
        if not state.logits:
            return [True] * len(state.rows)
        last = state.batch.lengths[:, None] + (len(state.logits) - 1)
        return [token not in self._ends for (token,) in state.batch.tokens.gather(1, last).tolist()]
