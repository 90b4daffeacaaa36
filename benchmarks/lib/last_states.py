"""A cache of recurrent states that cannot be rolled back: what `StateCache` is compared with."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from fsd_decoding.models.state_cache import StateCache


class LastStates(StateCache):
    """Keeps the state after the last token alone, wherever a pass begins: nothing is copied, nothing looked up.

    What follows a rejected draft is wrong.
    """

    def record(self, states: Sequence[Tensor]) -> None:
        self._recorded = states[-1].unsqueeze(1)

    def _before(self, name: Hashable) -> Tensor | None:
        return self._states.get(name)

    def _update(self, name: Hashable, states: Tensor) -> None:
        self._states[name] = states[:, -1]
        self._updated.add(name)
